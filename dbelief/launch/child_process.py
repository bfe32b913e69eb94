"""Child processes of a local cluster: started, monitored, restarted a few times, signalled by their own ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dbelief.errors import RuntimeFailure, UserError
from dbelief.process import with_parent
from dbelief.process.log import message_in

from .forked_process import ForkServer
from .python_error import error_in

RESTARTS = 3
BACK_OFF_S = (0.5, 1.0, 2.0)
ASKED_S = 5.0
"""Time limit for all of them together to end after they are asked to, in seconds."""


class Process(Protocol):
    """A running or ended process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal, unless it has ended."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


class Way(Protocol):
    """Method of starting and ending a child process, on this machine or another.

    Attributes
    ----------
    noise
        Prefixes of lines in its log that the program itself did not write.
    """

    noise: tuple[str, ...]

    def start(self, arguments: list[str], log: Path) -> Process:
        """Start `dbelief` with these arguments in a session of its own, its output appended to a file.

        The kernel kills the process when the launcher exits for any reason.
        """
        ...

    def ask_to_end(self, process: Process) -> None:
        """Request the program's end, by a signal."""
        ...

    def fate(self, code: int) -> tuple[int, str]:
        """The program's exit code and a description of its end, where the process ended with `code`."""
        ...

    def possible(self) -> bool:
        """Whether the program can be started again."""
        ...


LOG_BYTES = 1 << 16
"""What is read of the end of a log, in bytes: a script may have printed gigabytes."""
PROGRAM = (sys.executable, "-P", "-m", "dbelief")
"""Start of the command line of a `dbelief` command, in this Python."""


def listening(arguments: Sequence[str], host: str) -> list[str]:
    """Arguments of a member that listens at a host, any port; a script, whose words end them, does not listen."""
    return [*arguments[:1], *([] if "--" in arguments else ["--listen", f"{host}:0"]), *arguments[1:]]


def spawn(command: Sequence[str], log: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a command as `Way.start` says; `stdin`: see `subprocess.Popen`."""
    # Not SIGTERM: a worker would first finish its work, and wait minutes for a cluster that is gone.
    guarded = with_parent.guarded([*command], signal.SIGKILL)
    with open(log, "ab") as output:
        return subprocess.Popen(guarded, stdin=stdin, stdout=output, stderr=output, start_new_session=True)


class Direct:
    """The program is the child process itself, on this machine; `program`: the start of its command line."""

    noise: tuple[str, ...] = ()

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program

    def start(self, arguments: list[str], log: Path) -> Process:
        """See `Way`."""
        return spawn([*self._program, *arguments], log)

    def ask_to_end(self, process: Process) -> None:
        """See `Way`."""
        process.send_signal(signal.SIGTERM)

    def fate(self, code: int) -> tuple[int, str]:
        """See `Way`."""
        return code, describe_exit(code)

    def possible(self) -> bool:
        """See `Way`."""
        return True


class Forked(Direct):
    """The program is a child process of this one, forked by a server that has imported it."""

    def __init__(self, server: ForkServer) -> None:
        super().__init__()
        self._server = server

    def start(self, arguments: list[str], log: Path) -> Process:
        """See `Way`."""
        return self._server.start(arguments, log)


@dataclass
class ChildProcess:
    """One `dbelief` command as a child process; must be started from the main thread.

    Each child has its own session, so that Ctrl-C reaches only the launcher.

    Attributes
    ----------
    name
        "ps-0", "worker-2": also the name of its log.
    arguments
        Arguments of `dbelief` on its command line.
    restarts
        Largest number of restarts.
    way
        Method of starting and ending it.
    """

    name: str
    arguments: list[str]
    log: Path
    restarts: int = 0
    way: Way = field(default_factory=Direct)
    process: Process | None = None
    started: int = 0
    _due_s: float = field(default=0.0, repr=False)
    _logged: int = field(default=0, repr=False)

    def start(self) -> None:
        """Start the process, with its output appended to its log.

        Raises
        ------
        RuntimeFailure
            The log cannot be written, or the process cannot be started.
        """
        try:
            with open(self.log, "ab") as log:
                self._logged = log.tell()
        except OSError as error:
            raise RuntimeFailure(f"{self.log}: cannot be written: {error.strerror}") from error
        self.process = self.way.start(self.arguments, self.log)
        self.started += 1

    @property
    def code(self) -> int | None:
        """Exit code of the program; None while it runs."""
        code = None if self.process is None else self.process.poll()
        return code if code is None else self.way.fate(code)[0]

    def wait(self, timeout_s: float) -> None:
        """Wait until it ends, for `timeout_s` at most; for as long where it does not run."""
        if self.process is None or self.process.poll() is not None:
            time.sleep(timeout_s)
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)

    def restart_if_due(self, now_s: float) -> bool:
        """Restart a failed process once its back-off is over; False where no restart is allowed. Call repeatedly."""
        if self.code in (None, 0):
            return True
        if self.started > self.restarts or self.code == UserError.exit_code:  # a restart cannot fix a user error
            return False
        if not self.way.possible():
            return False
        if not self._due_s:
            self._due_s = now_s + BACK_OFF_S[min(self.started, len(BACK_OFF_S)) - 1]
        elif now_s >= self._due_s:
            self._due_s = 0.0
            self.start()
        return True

    def log_messages(self) -> list[str]:
        """Messages of its log since the last start; of a long one the last `LOG_BYTES`."""
        try:
            return [message_in(line) for line in self._last_lines(self._logged)]
        except OSError:
            return []

    def last_words(self) -> str:
        """Last message of its log."""
        try:
            lines = [line for line in self._last_lines() if line.strip() and not line.startswith(self.way.noise)]
        except OSError:
            return ""
        return message_in(lines[-1]) if lines else ""

    def _last_lines(self, since: int = 0) -> list[str]:
        with open(self.log, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since, size - LOG_BYTES))
            return log.read().decode(errors="replace").splitlines()

    def fate(self) -> str:
        """Its end and its last message, in one line."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return f"{self.name} runs"
        code, ended = self.way.fate(code)
        words = (error_in(self.log_messages())[0] or self.last_words().removeprefix("Error: ")) if code >= 0 else ""
        return f"{self.name} {ended}" + (f": {words}" if words else "")

    def ask_to_end(self) -> bool:
        """Send one end request: a second signal would cut its clean shutdown short. False where it does not run."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.way.ask_to_end(self.process)
        return True

    def end(self, grace_s: float) -> None:
        """Request its end, wait, and kill it after `grace_s`."""
        if self.ask_to_end():
            self.finish(grace_s)

    def finish(self, grace_s: float) -> None:
        """Wait for a process that was asked to end, and kill it after `grace_s`."""
        assert self.process is not None
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def describe_exit(code: int) -> str:
    """Description of a process's exit code."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def terminate_all(children: list[ChildProcess], grace_s: float = 5.0) -> None:
    """End all children; kill those that have not ended within `grace_s`."""
    until_s = time.monotonic() + grace_s
    for child in children:
        if child.process is not None:
            try:
                child.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
    asked = [child for child in children if child.ask_to_end()]
    until_s = time.monotonic() + ASKED_S
    for child in asked:
        child.finish(max(0.0, until_s - time.monotonic()))
