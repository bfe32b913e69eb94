"""The other ends of what `dbelief bench wire` measures, each a process, as the one that measures has them.

A peer connects to the process that measures, is told what to do line by line, as JSON, and answers in the same way:
what is an object prepares it, what is a word is a turn. `kinds.py` says what each does.
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
    """A peer as a child process, from this side.

    Raises
    ------
    Failure
        It does not come up; with its last words.
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
        """What it answers.

        Raises
        ------
        Failure
            It is gone; with its last words.
        """
        answer = self.line.hear()
        if answer is None:
            self.child.end(5.0)
            raise RuntimeFailure(self.child.fate())
        return answer

    def ask(self, message: Any) -> Any:
        """Tell it something, and hear what it answers."""
        self.line.tell(message)
        return self.hear()

    def __enter__(self) -> Self:
        """The peer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.line.close()
        terminate_all([self.child])
