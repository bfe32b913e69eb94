"""Credentials of a job whose members are on other computers: made at its start, and removed at its end."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dbelief.rundir.folder import CREDENTIALS
from dbelief.security.certificates import make_credentials
from dbelief.security.identity import load

log = logging.getLogger(__name__)

DAYS = 365.0
"""Validity of the job's certificates."""


@contextmanager
def job_credentials(within: Path, address: str) -> Iterator[Path]:
    """The folder of the roles' credentials, within another one: the operator's commands find it in the run folder.

    This process has the operator's.

    Parameters
    ----------
    address
        Host name or IP address of the coordinator, as members have it.
    """
    folder = within / CREDENTIALS
    shutil.rmtree(folder, ignore_errors=True)  # of a launcher that was killed
    make_credentials(folder, DAYS, ("localhost",), (address, "localhost"))
    with ExitStack() as stack:
        stack.callback(_remove, folder)
        load(folder / "operator", ("operator",))
        log.info(f"credentials for dbelief top: {folder / 'operator'}")
        yield folder


def _remove(folder: Path) -> None:
    """Remove the folder, and the one that was made for it alone."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # it holds more
        folder.parent.rmdir()
