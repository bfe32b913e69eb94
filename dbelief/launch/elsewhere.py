"""What jobs have in common whose members are on other computers: credentials, a shared run folder, addresses."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dbelief.rundir.folder import CREDENTIALS
from dbelief.security.certificates import make_credentials
from dbelief.security.identity import using

log = logging.getLogger(__name__)

DAYS = 365.0
"""Validity of the job's certificates."""
ROLES = ("ps", "worker")
"""Roles of members."""


@contextmanager
def job_credentials(within: Path, address: str, registry: Sequence[str] = ("localhost",)) -> Iterator[Path]:
    """The folder of the roles' credentials, within another one: the operator's commands find it in the run folder.

    They are made at the start and removed at the end; meanwhile this process has the operator's.

    Parameters
    ----------
    address
        Host name or IP address of the coordinator, as members have it.
    registry
        Host names of the registry, where it is reached by TLS.
    """
    folder = within / CREDENTIALS
    shutil.rmtree(folder, ignore_errors=True)  # of a launcher that was killed
    make_credentials(folder, DAYS, registry, (address, "localhost"))
    with ExitStack() as stack:
        stack.callback(_remove, folder)
        stack.enter_context(using(folder / "operator", ("operator",)))
        log.info(f"credentials for dbelief top: {folder / 'operator'}")
        yield folder


def _remove(folder: Path) -> None:
    """Remove the folder, and the one that was made for it alone."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # it holds more
        folder.parent.rmdir()


@contextmanager
def marker(folder: Path) -> Iterator[Path]:
    """A file within the `with` block, by which another computer sees whether it shares the folder."""
    file = folder / f".shared-{secrets.token_hex(8)}"
    file.touch()
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def not_shared(folder: Path) -> str:
    """Why a folder must be shared, behind the name of the computer that does not."""
    return (
        f"does not share {folder}, where shards write snapshot sets and logs of pushes: a job on several computers "
        "needs a folder that all share, or an object store: output: s3://..."
    )


def bracketed(address: str) -> str:
    """An address as part of HOST:PORT."""
    return f"[{address}]" if ":" in address else address
