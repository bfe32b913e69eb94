"""Identity of this process: every channel and every port of a process uses the same role."""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dbelief.errors import UserError
from dbelief.process.log import redact
from dbelief.process.terminal.console import host_and_port

from .credentials import Credentials
from .loopback import Loopback, loopback_address

log = logging.getLogger(__name__)

FOLDER = "DBELIEF_CREDENTIALS"
INSECURE = "DBELIEF_INSECURE"


class _Identity:
    """Credentials of this process, and whether it may listen without."""

    loaded: Credentials | None = None
    insecure = False
    warned: set[str] = set()  # noqa: RUF012 - shared by the whole process on purpose


def load(folder: Path, roles: tuple[str, ...] = ()) -> None:
    """Use the credentials of a folder from now on; `roles`: the roles that are allowed here, () for any.

    Raises
    ------
    UserError
        They cannot be read, or are another role's.
    """
    found = _read(folder)
    if roles and found.role not in roles:
        raise UserError(f"credentials {folder}: they are for {found.role}, wanted {' or '.join(roles)}")
    _Identity.loaded = found


@contextmanager
def using(folder: Path, roles: tuple[str, ...] = ()) -> Iterator[None]:
    """Use the credentials of a folder within the `with` block, as `load`, and then those of before."""
    before = _Identity.loaded
    load(folder, roles)
    try:
        yield
    finally:
        _Identity.loaded = before


def current() -> Credentials | None:
    """Credentials of this process; of tools without `load`, those that `DBELIEF_CREDENTIALS` names; None: none.

    Raises
    ------
    UserError
        The environment names a folder without credentials.
    """
    folder = os.environ.get(FOLDER)
    return _read(Path(folder)) if _Identity.loaded is None and folder else _Identity.loaded


@functools.lru_cache(maxsize=8)
def _read(folder: Path) -> Credentials:
    found = Credentials.read(folder)
    for secret in (found.token, found.registry_password):
        redact(secret)
    return found


def variables() -> dict[str, str]:
    """Variables by which a program that this process becomes has its credentials too."""
    found = current()
    return {FOLDER: str(found.folder)} if found is not None else {}


def clear() -> None:
    """Remove credentials from the environment, for this process and its children: the job stays on this machine."""
    os.environ.pop(FOLDER, None)


def allow_insecure() -> None:
    """Permit listening on any address from now on; each one that this opens is logged."""
    _Identity.insecure = True


def may_listen(address: str) -> None:
    """Check that this process may listen on `host:port`: without credentials only on loopback.

    Raises
    ------
    UserError
        It may not.
    """
    host, _ = host_and_port(address)
    if current() is not None or is_loopback(host.strip("[]")):
        return
    if not _Identity.insecure:
        raise UserError(
            f"not listening on {address} without TLS and a token, since other machines reach it: give --credentials "
            "DIR (`dbelief certs` makes some), or --insecure where the network keeps strangers out"
        )
    if address not in _Identity.warned:
        _Identity.warned.add(address)
        log.warning(f"--insecure: {address} is open to anybody who reaches it, without TLS and without a token")


def must_show(address: str) -> Loopback | None:
    """Token check for callers of a server without credentials at `host:port`; None: any process may call.

    Call it once the server listens.
    """
    near = loopback_address(address)
    if near is None:
        return None
    if _Identity.insecure:
        log.warning(f"--insecure: {address} is open to every user of this machine")
        return None
    return Loopback(near)


def is_loopback(host: str) -> bool:
    """Whether a host, without brackets, is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
