"""Peer processes of `dbelief bench wire`, as seen from the measuring process.

A peer connects to the measuring process, receives JSON messages, one per line, and answers in the same form. An object
prepares it, a string is an operation.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from dbelief.errors import RuntimeFailure
from dbelief.launch.child_process import ChildProcess, Direct, Way, terminate_all

from .control_socket import WAIT_S, Line

DIRECT = Direct()
COMMAND = ("bench", "peer")


class Peer:
    """A peer as a child process, seen from the measuring process.

    Parameters
    ----------
    way
        Starts the process.
    command
        Its first arguments, before its kind and the address to connect to.

    Raises
    ------
    RuntimeFailure
        The peer does not start; the message includes its last log message.
    """

    def __init__(
        self, kind: str, folder: Path, name: str | None = None, way: Way = DIRECT, command: Sequence[str] = COMMAND
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.2)
            address = f"127.0.0.1:{server.getsockname()[1]}"
            name = name or kind
            arguments = [*command, kind, "--connect", address]
            self.child = ChildProcess(name, arguments, folder / f"{name}.log", way=way)
            self.child.start()
            until_s = time.monotonic() + WAIT_S
            while True:
                try:
                    self.line = Line(server.accept()[0])
                    return
                except TimeoutError:
                    if self.child.code is not None or time.monotonic() > until_s:
                        fate = self.child.fate()
                        terminate_all([self.child], 0.0)
                        raise RuntimeFailure(f"no {kind} to measure: {fate}") from None

    def receive_message(self) -> Any:
        """The peer's next answer.

        Raises
        ------
        RuntimeFailure
            The peer has exited; the message includes its last log message.
        """
        answer = self.line.receive_message()
        if answer is None:
            self.child.finish(WAIT_S)  # it is ending by itself: a signal now would hide the cause
            raise RuntimeFailure(self.child.fate())
        return answer

    def ask(self, message: Any) -> Any:
        """Send a message and return the peer's answer."""
        self.line.send_message(message)
        return self.receive_message()

    def __enter__(self) -> Self:
        """The peer."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the connection and end the process."""
        self.line.close()
        terminate_all([self.child])


def run_peer(body: Callable[[Line], None], address: str) -> None:
    """In a peer's process: connect to the measuring process, and run the peer until that closes the connection."""
    host, _, port = address.rpartition(":")
    line = Line(socket.create_connection((host, int(port)), WAIT_S))
    try:
        body(line)
    finally:
        line.close()
