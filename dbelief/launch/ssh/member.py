"""A member of a job on a host: a program that ends with the connection it was started by."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dbelief.errors import UserError
from dbelief.launch.child_process import Process, listening, spawn
from dbelief.launch.guarded_program import BROKEN, ended, guarded, packed
from dbelief.launch.places import Places

from .connection import command_line
from .hosts import ReachableHosts


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
    variables
        See `guarded`.
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
        variables: Mapping[str, str],
    ) -> None:
        self._role, self._name, self._hosts, self._places = role, name, hosts, places
        self._program, self._folder, self._credentials, self._listens = program, folder, credentials, listens
        self._variables = variables
        self._host = ""
        self._ended: tuple[int, str] | None = None

    def start(self, arguments: list[str], log: Path) -> Process:
        """See `Way`."""
        process = spawn(self.command(arguments), log, stdin=subprocess.PIPE)
        _send(process, packed(self._credentials))
        return process

    def command(self, arguments: list[str]) -> list[str]:
        """The command line of `ssh`; reserves a place on a host, once for each start."""
        self._ended = None
        self._host = self._places.put(self._role, self._name, self._hosts.left())
        words = [*self._program, *listening(arguments, self._listens[self._host])]
        return command_line(self._host, guarded(self._folder, words, self._variables))

    def ask_to_end(self, process: Process) -> None:
        """See `Way`."""
        _send(process, b"TERM\n")

    def fate(self, code: int) -> tuple[int, str]:
        """See `Way`."""
        if self._ended is None:
            if code == BROKEN:
                self._hosts.broke(self._host)
                self._ended = 1, f"was lost with the connection to host {self._host}"
            else:
                self._ended = ended(code, f"host {self._host}")
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
        process.stdin.write(line)
        process.stdin.flush()
