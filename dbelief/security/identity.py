"""Who this process is, once for all of it: every channel and every port of a process is the same role's."""

from __future__ import annotations

import functools
import ipaddress
import os
from pathlib import Path

from dbelief.errors import UserError
from dbelief.process.console import announce, host_and_port
from dbelief.process.log import redact

from .credentials import Credentials
from .loopback import Loopback, loopback_address

FOLDER = "DBELIEF_CREDENTIALS"
INSECURE = "DBELIEF_INSECURE"


class _Identity:
    """Of this process: its credentials, and whether it may do without."""

    taken: Credentials | None = None
    insecure = False
    told: set[str] = set()  # noqa: RUF012 - one for the process is what is meant


def load(folder: Path, roles: tuple[str, ...] = ()) -> None:
    """Be whom the credentials of a folder name from now on; `roles`: those that are wanted here, () for any.

    Raises
    ------
    Mistake
        They are not to be read, or another role's.
    """
    found = _read(folder)
    if roles and found.role not in roles:
        raise UserError(f"credentials {folder}: they are for {found.role}, wanted {' or '.join(roles)}")
    _Identity.taken = found


def current() -> Credentials | None:
    """This process's credentials; of people's own programs, those that `DBELIEF_CREDENTIALS` names; None: it has none.

    Raises
    ------
    Mistake
        The environment names a folder that holds none.
    """
    folder = os.environ.get(FOLDER)
    return _read(Path(folder)) if _Identity.taken is None and folder else _Identity.taken


@functools.lru_cache(maxsize=8)
def _read(folder: Path) -> Credentials:
    found = Credentials.read(folder)
    for secret in (found.token, found.registry_password):
        redact(secret)
    return found


def clear() -> None:
    """Have no credentials, whatever the environment says, here and in children: of a job that stays on this machine."""
    os.environ.pop(FOLDER, None)


def allow_insecure() -> None:
    """Listen wherever it is asked for from now on; what that opens is said as it happens."""
    _Identity.insecure = True


def may_listen(address: str) -> None:
    """See that this process may be called at `host:port`: without credentials only by its own machine.

    Raises
    ------
    Mistake
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
    if address not in _Identity.told:
        _Identity.told.add(address)
        announce(f"--insecure: {address} is open to anybody who reaches it, without TLS and without a token")


def must_show(address: str) -> Loopback | None:
    """What callers of a server without credentials at `host:port` must show; None: nothing, everybody may call.

    To be called once it listens.
    """
    near = loopback_address(address)
    if near is None:
        return None
    if _Identity.insecure:
        announce(f"--insecure: {address} is open to every user of this machine")
        return None
    return Loopback(near)


def is_loopback(host: str) -> bool:
    """Whether a host, without brackets, is this machine for itself alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
