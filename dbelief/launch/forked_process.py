"""Processes of a launcher that are forked by a server which has imported their programs: no imports at each start."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from dbelief.errors import RuntimeFailure
from dbelief.launch.orphans import reap_orphans
from dbelief.process import with_parent

log = logging.getLogger(__name__)

ANSWER_S = 60.0
"""Longest time for the server to import its modules and fork a process, in seconds."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_ROOM = "-" * 4096
"""Room for the command line of a forked process, in the server's own; a longer one is cut."""


ROLES = ("coordinator", "ps", "worker")


def role_modules() -> list[str]:
    """Modules with the programs of a job's roles, and what these import later."""
    commands = {point.name: point.module for point in entry_points(group="dbelief.commands")}
    return [*(f"{commands[role].rpartition('.')[0]}.process" for role in ROLES), "dbelief.registry.server"]


class ForkedProcess:
    """A process that a `ForkServer` forked, with the interface of `subprocess.Popen`; of one thread."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._name = name

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # SIGCHLD is ignored: the kernel has discarded the code, as for `Popen`
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and first for adopted orphans that have ended; raises `subprocess.TimeoutExpired`.

        Cost: a look at all children, and then none until it ends: a launcher waits all the time beside its job.
        """
        reap_orphans()
        if self.poll() is None:
            _wait_for_end(self.pid, timeout)
            if self.poll() is None:
                raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _wait_for_end(pid: int, timeout_s: float | None) -> None:
    """Wait until a child, not yet waited for, has ended; for `timeout_s` at most."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, an earlier kernel, or a sandbox
        _poll_for_end(pid, timeout_s)
        return
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        ended.poll(None if timeout_s is None else 1e3 * max(0.0, timeout_s))
    finally:
        os.close(descriptor)


def _poll_for_end(pid: int, timeout_s: float | None) -> None:
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = 0.0005
    with suppress(ChildProcessError):  # SIGCHLD is ignored, and it has ended
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left_s = pause_s if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 0.02)


class ForkServer:
    """The server, within a `with` block: it imports while this process goes on.

    Enter it in a thread that runs as long as its processes should: see `with_parent`.

    Parameters
    ----------
    modules
        Names of the modules to import; none of them may start a thread. None: those of a job's roles.
    """

    _server: subprocess.Popen[bytes]
    _channel: socket.socket
    _errors: IO[bytes]

    def __init__(self, modules: Sequence[str] | None = None) -> None:
        self._modules = role_modules() if modules is None else modules

    def __enter__(self) -> Self:
        before = ctypes.c_int()
        with_parent.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
        self._was_subreaper = before.value
        with_parent.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        with_parent.prctl(_PR_SET_CHILD_SUBREAPER, self._was_subreaper)

    def start(self, arguments: list[str], log_file: Path) -> ForkedProcess:
        """Start `dbelief` with these arguments, its output appended to a file; in a session of its own.

        Raises
        ------
        RuntimeFailure
            The server ended or did not answer; the process could not be forked.
        """
        if self._server.poll() is not None:
            log.warning(f"the fork server ended{self._last_words()}; another one is started")
            self._end()
            self._start()
        request = {"arguments": arguments, "log": str(log_file.resolve()), "environment": dict(os.environ)}
        answer = self._exchange(request)
        if "error" in answer:
            raise RuntimeFailure(f"dbelief {arguments[0]}: no process could be forked: {answer['error']}")
        return ForkedProcess(answer["pid"], f"dbelief {arguments[0]}")

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """The server's answer; where there is none the server is killed, so that no later request gets a late one."""
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
            with self._channel.makefile("rb") as answers:
                line, what = answers.readline(), "ended"
        except TimeoutError:
            line, what = b"", f"did not answer within {ANSWER_S:g} s"
        except OSError:
            line, what = b"", "ended"
        if not line:
            self._server.kill()
            self._server.wait()
            raise RuntimeFailure(f"the fork server {what}{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> None:
        self._channel, remote = socket.socketpair()
        self._channel.settimeout(ANSWER_S)
        self._errors = tempfile.TemporaryFile(prefix="dbelief-")  # noqa: SIM115  # closed by `_end`
        program = [sys.executable, "-P", "-m", "dbelief.launch.fork_server"]
        words = [str(remote.fileno()), str(os.getpid()), _ROOM, *self._modules]
        with remote:
            self._server = subprocess.Popen(
                with_parent.guarded([*program, *words], signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,
                pass_fds=[remote.fileno()],
            )

    def _end(self) -> None:
        """End the server, also one that still imports: nothing that it has is needed any more."""
        self._channel.close()
        self._server.kill()
        self._server.wait()
        self._errors.close()

    def _last_words(self) -> str:
        """The last line of its output, after a colon."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
