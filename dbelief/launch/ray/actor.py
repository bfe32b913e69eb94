"""The actor of one member, on a node of a Ray cluster: it starts the program, and hands on its output and its end."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from dbelief.launch.child_process import PROGRAM, listening
from dbelief.launch.elsewhere import bracketed, not_shared
from dbelief.launch.guarded_program import guarded

OUTPUT_BYTES = 1 << 16
"""Most of a program's output in one reply."""
THREADS = 4
"""Methods that run at a time: `follow` waits for the program's output."""


class MemberStart(NamedTuple):
    """What an actor is to start.

    Attributes
    ----------
    arguments
        Of the program: a role, and more.
    folder
        Where it runs, if the node has that folder; else the user's own.
    version
        Of dbelief, which the node must have.
    file
        A file that the node must have; "": none.
    gpu
        Whether the actor has reserved a GPU.
    variables
        See `guarded`.
    """

    arguments: list[str]
    folder: str
    version: str
    file: str
    gpu: bool
    variables: dict[str, str]


class MemberActor:
    """A member of a job; Ray makes an actor of this class, which has no other use.

    The program ends with the actor's process, and with it all processes that it has started.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address or _node_address()
        self._program: subprocess.Popen[bytes] | None = None

    def start(self, order: MemberStart) -> tuple[str, str]:
        """Start `dbelief` in this node's Python: the node's address, and what hinders the start, else ""."""
        return self._address, self._hindered(order) or self._start(order)

    def _hindered(self, order: MemberStart) -> str:
        if (own := version("dbelief")) != order.version:
            return f"dbelief is of version {own} there, and here of {order.version}"
        if order.file and not Path(order.file).exists():
            return f"it {not_shared(Path(order.file).parent)}"
        return ""

    def _start(self, order: MemberStart) -> str:
        words = listening(order.arguments, bracketed(self._address))
        command = guarded(Path(order.folder), [*PROGRAM, *words], order.variables)
        apart = {} if order.gpu else {"CUDA_VISIBLE_DEVICES": ""}  # Ray itself does not hide devices from such an actor
        pipe = subprocess.PIPE
        self._program = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
            env=os.environ | apart,
        )
        return ""

    def write(self, line: bytes) -> None:
        """Write a line to the guard: first the credentials, then names of signals. No effect where it has ended."""
        assert self._program is not None
        assert self._program.stdin is not None
        with suppress(OSError, ValueError):
            self._program.stdin.write(line)

    def follow(self) -> tuple[bytes, int | None]:
        """Wait for output, and return it; at its end, the guard's exit code too."""
        assert self._program is not None
        assert self._program.stdout is not None
        output = os.read(self._program.stdout.fileno(), OUTPUT_BYTES)
        if output:
            return output, None
        self._program.stdout.close()
        if self._program.stdin is not None:
            self._program.stdin.close()
        return b"", self._program.wait()


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
