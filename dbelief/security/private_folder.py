"""Folders that only one user can access, and the secret that the processes of a user share."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from dbelief.errors import UserError

LONGEST_SOCKET_PATH = 107
"""Bytes of `sockaddr_un.sun_path`, less the terminating zero."""
SHORT_FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")
"""Folders below which a socket has a short name, where the temporary folder is too deep, as batch systems set it."""
SECRET, SECRET_BYTES = "secret", 32
"""File and length of the user's secret."""


def make_private(folder: Path) -> Path:
    """Make a folder with mode 0700 unless it exists; returns it.

    Raises
    ------
    OSError
        It cannot be made, or the existing one is another user's, open to others, or no folder.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(folder, os.lstat(folder), stat.S_ISDIR)
    return folder


def make_socket_folder(prefix: str, socket: str) -> Path:
    """Make a new folder with mode 0700, in which a socket can be named `socket`: the path of one has an end.

    It is made in the temporary folder; where that is too deep, in `$XDG_RUNTIME_DIR` or one of `SHORT_FOLDERS`.

    Raises
    ------
    UserError
        None of them can be used.
    """
    troubles = []
    for parent in filter(None, (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), *SHORT_FOLDERS)):
        try:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=os.path.abspath(parent)))
        except OSError as error:
            troubles.append(f"{parent}: {error.strerror or error}")
            continue
        if len(os.fsencode(folder / socket)) <= LONGEST_SOCKET_PATH:
            return folder
        folder.rmdir()
        troubles.append(f"{parent}: longer than the {LONGEST_SOCKET_PATH} bytes of a socket's path")
    raise UserError(f"no folder for a socket ({'; '.join(troubles)}): set TMPDIR to a shorter one")


@functools.lru_cache(maxsize=1)
def user_secret() -> bytes:
    """32 random bytes that the processes of this user share, made by the first of them.

    They are stored in `$XDG_STATE_HOME/dbelief` (`~/.local/state/dbelief`), or in the temporary folder where that is
    not possible: both are the same for a login shell, cron, and a batch system's step.

    Raises
    ------
    UserError
        Neither folder can be used.
    """
    troubles = []
    for folder in _candidates():
        try:
            return _shared(make_private(folder) / SECRET)
        except OSError as error:
            troubles.append(f"{folder}: {error.strerror or error}")
    raise UserError(f"no private folder for this user's secret: {'; '.join(troubles)}")


def _candidates() -> list[Path]:
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:  # a user without an entry in the password file, and no HOME
        return [_temporary()]
    return [home / "dbelief", _temporary()]


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"dbelief-{os.geteuid()}"


def _shared(path: Path) -> bytes:
    """Content of a private file, random if this call makes it: concurrent processes all get the same content."""
    if not path.exists():
        new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
            os.link(new, path)  # atomic, and replaces nothing
        except FileExistsError:
            pass
        finally:
            new.unlink(missing_ok=True)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        _check_private(path, os.fstat(file.fileno()), stat.S_ISREG)
        content = file.read(SECRET_BYTES + 1)
    if len(content) != SECRET_BYTES:
        raise OSError(errno.EINVAL, f"{SECRET} is not {SECRET_BYTES} bytes long; remove it while no job runs")
    return content


def _check_private(path: Path, found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, f"{path.name} is another user's, or open to others")
