"""Trackers of experiments, and what each needs on the machine of the coordinator."""

from __future__ import annotations

import os
from importlib.util import find_spec

from dbelief.errors import UserError

NEEDS = {"tensorboard": "tensorboardX", "mlflow": "mlflow"}
"""Trackers, and the module that each needs."""
ADDRESS = "MLFLOW_TRACKING_URI"


def check_usable(name: str) -> None:
    """Check that a tracker's own library is installed, and that it is known where it stores.

    Raises
    ------
    UserError
        It is not.
    """
    if find_spec(NEEDS[name]) is None:
        raise UserError(f"track: {name} needs {NEEDS[name]}: pip install 'dbelief[{name}]'")
    if name == "mlflow" and not os.environ.get(ADDRESS):
        raise UserError(f"track: mlflow needs the environment variable {ADDRESS}, such as http://HOST:5000")
