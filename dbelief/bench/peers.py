"""Peer processes of `dbelief bench wire`, as seen from the measuring process.

A peer connects to the measuring process, receives JSON messages, one per line, and answers in the same form. An object
prepares it, a string is an operation. `peer_main.py` maps each kind of peer to its function.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dbelief.errors import RuntimeFailure
from dbelief.launch.child_process import ChildProcess, terminate_all

from .control_socket import WAIT_S, Line


class Peer:
    """A peer as a child process, seen from the measuring process.

    Raises
    ------
    RuntimeFailure
        The peer does not start; the message includes its last log message.
    """

    def __init__(self, kind: str, folder: Path, name: str | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.2)
            address = f"127.0.0.1:{server.getsockname()[1]}"
            name = name or kind
            self.child = ChildProcess(name, ["bench", "peer", kind, "--connect", address], folder / f"{name}.log")
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

    def hear(self) -> Any:
        """The peer's next answer.

        Raises
        ------
        RuntimeFailure
            The peer has exited; the message includes its last log message.
        """
        answer = self.line.hear()
        if answer is None:
            self.child.end(5.0)
            raise RuntimeFailure(self.child.fate())
        return answer

    def ask(self, message: Any) -> Any:
        """Send a message and return the peer's answer."""
        self.line.tell(message)
        return self.hear()

    def __enter__(self) -> Self:
        """The peer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection and end the process."""
        self.line.close()
        terminate_all([self.child])
