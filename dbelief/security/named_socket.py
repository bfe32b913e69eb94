"""Unix sockets that processes of one user on one host connect by name.

The name lies in a folder that both processes can access, containers that share it included, and exists only while
callers are expected. So two processes detect by trying whether they share a host: no address, host name or process
number is compared. A process that is killed while it listens leaves a name without a listener; `remove_stale_names`
removes those, across containers too.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
"""Folder of the names; containers that share this folder can connect."""
CONNECT_S = 5.0
"""Timeout of a connection, and of what is received in it first."""
STALE_S = 10.0
"""Age from which a name without a listener belongs to a killed process: a running one listens at once."""
TOKEN_BYTES = 32
"""Length of the random token by which two processes recognise what they speak of."""

_NAME = re.compile(r"[0-9a-f]{32}")
_PREFIX = "dbelief-"
_MODE = 0o600
_BACKLOG = 64


def new_name() -> str:
    """32 random hexadecimal digits."""
    return secrets.token_hex(16)


def new_token() -> bytes:
    """`TOKEN_BYTES` random bytes."""
    return secrets.token_bytes(TOKEN_BYTES)


def is_name(text: str) -> bool:
    """Whether a text of another process is a name: it becomes a part of a path."""
    return _NAME.fullmatch(text) is not None


@contextmanager
def listening(name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    """A socket that listens under a name, within the `with` block.

    Raises
    ------
    OSError
        The socket cannot have a name here.
    """
    path = _path(name)
    with socket.socket(socket.AF_UNIX, kind) as door:
        try:
            os.fchmod(door.fileno(), _MODE)  # and so the name's
            door.bind(str(path))
            door.listen(_BACKLOG)
            yield door
        finally:
            path.unlink(missing_ok=True)


def connect(name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Connect to the process that listens under a name; the socket has the timeout `CONNECT_S`.

    Raises
    ------
    OSError
        No process does, or it does not accept in time.
    """
    call = socket.socket(socket.AF_UNIX, kind)
    try:
        call.settimeout(CONNECT_S)
        call.connect(str(_path(name)))
    except BaseException:
        call.close()
        raise
    return call


def remove_stale_names() -> None:
    """Remove the names of sockets whose processes were killed while they listened."""
    with suppress(OSError):
        for entry in os.scandir(FOLDER):
            if entry.name.startswith(_PREFIX) and is_name(entry.name.removeprefix(_PREFIX)):
                _sweep(entry)


def _sweep(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        found = entry.stat(follow_symlinks=False)
        if not stat.S_ISSOCK(found.st_mode) or time.time() - found.st_mtime < STALE_S:
            return
        # A listener of another kind refuses too, with another error.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(entry.path)
            except ConnectionRefusedError:
                os.unlink(entry.path)


def _path(name: str) -> Path:
    return FOLDER / f"{_PREFIX}{name}"
