"""A member of a job on a host: a program that ends with the connection it was started by."""

from __future__ import annotations

import base64
import io
import signal
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dbelief.errors import UserError
from dbelief.launch.child_process import Process, describe_exit, spawn
from dbelief.launch.places import Places

from .connection import BROKEN, command_line
from .hosts import ReachableHosts

_GUARD = """exec 3<&0
mask=$(umask)
umask 077
own=$(mktemp -d "${TMPDIR:-/tmp}/dbelief-credentials-XXXXXXXX") || exit 1
program=
end() {
  [ -z "$program" ] || kill -s KILL -- "-$program" "$program"
  rm -rf "$own"
} 2>/dev/null
trap end EXIT
trap 'exit 1' HUP INT TERM
IFS= read -r packed <&3 || exit 1
printf %s "$packed" | base64 -d | tar -xof - -C "$own" || exit 1
umask "$mask"
cd "$1" 2>/dev/null || cd
shift
! command -v setsid >/dev/null || set -- setsid "$@"
DBELIEF_CREDENTIALS=$own "$@" </dev/null 3<&- &
program=$!
(while read -r name <&3; do kill -s "$name" "$program"; done
kill -s KILL -- "-$program" "$program") >/dev/null 2>&1 &
reader=$!
wait "$program"
code=$?
kill "$reader" 2>/dev/null
[ "$code" -ne 255 ] || code=1
exit "$code\""""
"""Runs a program on a host. On its input come credentials, as a tar file in base64, which exist while it runs, and then
names of signals. Where the input ends, it is killed with all processes that it has started: ssh forwards no signals,
and a program would outlive its connection. 255 is the exit code of `ssh` itself."""
_SIGNAL = 128
"""A shell's exit code of a program that signal n has killed is 128 + n."""


class SshMember:
    """Method of starting one member on a host: a `Way` of `dbelief.launch.child_process`.

    Parameters
    ----------
    program
        Words that start `dbelief` on a host.
    folder
        Folder where it runs, if the host has it; else the user's own.
    credentials
        Folder on this machine whose files it gets.
    listens
        By host, the address that the member listens on, by which other members connect.
    """

    noise: tuple[str, ...] = ()

    def __init__(
        self,
        role: str,
        name: str,
        hosts: ReachableHosts,
        places: Places,
        program: Sequence[str],
        folder: Path,
        credentials: Path,
        listens: Mapping[str, str],
    ) -> None:
        self._role, self._name, self._hosts, self._places = role, name, hosts, places
        self._program, self._folder, self._credentials, self._listens = program, folder, credentials, listens
        self._host = ""
        self._ended: tuple[int, str] | None = None

    def start(self, arguments: list[str], log: Path) -> Process:
        """See `Way`."""
        process = spawn(self.command(arguments), log, stdin=subprocess.PIPE)
        _send(process, _packed(self._credentials))
        return process

    def command(self, arguments: list[str]) -> list[str]:
        """The command line of `ssh`; reserves a place on a host, once for each start."""
        self._ended = None
        self._host = self._places.put(self._role, self._name, self._hosts.left())
        role, *more = arguments  # behind which may be the words of a script
        listening = [] if "--" in more else ["--listen", f"{self._listens[self._host]}:0"]  # a script does not listen
        words = ["sh", "-c", _GUARD, "sh", str(self._folder), *self._program, role, *listening, *more]
        return command_line(self._host, words)

    def ask_to_end(self, process: Process) -> None:
        """See `Way`."""
        _send(process, b"TERM")

    def fate(self, code: int) -> tuple[int, str]:
        """See `Way`."""
        if self._ended is None:
            if code == BROKEN:
                self._hosts.broke(self._host)
                self._ended = 1, f"was lost with the connection to host {self._host}"
            else:
                code = _SIGNAL - code if code - _SIGNAL in signal.valid_signals() else code
                self._ended = code, f"on host {self._host} {describe_exit(code)}"
            if self._ended[0] not in (0, UserError.exit_code):
                self._places.failed(self._host)
        return self._ended

    def possible(self) -> bool:
        """See `Way`."""
        return self._places.again(self._role, self._name, self._hosts.left())


def _send(process: Process, line: bytes) -> None:
    """Write a line to a process's input; without effect where it has ended."""
    assert isinstance(process, subprocess.Popen)
    assert process.stdin is not None
    with suppress(OSError, ValueError):
        process.stdin.write(line + b"\n")
        process.stdin.flush()


def _packed(folder: Path) -> bytes:
    """The files of a folder, as a tar file in base64."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return base64.b64encode(packed.getvalue())
