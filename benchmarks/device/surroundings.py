"""Environment of the processes of a part: this checkout first on their path, and the stand-in for CuPy if requested."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.harness import checkout

STAND_IN = str(Path(__file__).with_name("stand_in"))


def variables(stand_in: bool) -> dict[str, str]:
    """Variables beside those of this process."""
    earlier = os.environ.get("PYTHONPATH", "")
    paths = [*([STAND_IN] if stand_in else []), str(checkout.ROOT), *filter(None, [earlier])]
    return {"PYTHONPATH": os.pathsep.join(paths), "DBELIEF_PICTURES": "0"}


def without_stand_in() -> dict[str, str]:
    """This process's whole environment, for one that chooses by itself where to put the stand-in."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path != STAND_IN)}
