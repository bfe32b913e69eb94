"""A proxy before an S3 server that delays what it passes on, answers by itself, or closes connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

ERROR = """<?xml version="1.0"?><Error><Code>{code}</Code><Message>of the proxy AKIAQUIETLY</Message></Error>"""


class Proxy:
    """Passes connections on to a port of loopback.

    Attributes
    ----------
    delay_s
        Waits before each piece of a request is passed on, in seconds.
    answer
        Status and code of an error that each new request gets in place of an answer; None: it is passed on.
    closes
        How many of the next connections are closed once a request has begun.
    """

    def __init__(self, port: int) -> None:
        self.delay_s, self.closes = 0.0, 0
        self.answer: tuple[int, str] | None = None
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            first = connection.recv(1 << 16)
            if self.closes:
                self.closes -= 1
                return
            if self.answer is not None:
                self._refuse(connection, first, *self.answer)
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                back = threading.Thread(target=_copy, args=(server, connection, lambda: 0.0), daemon=True)
                back.start()
                time.sleep(self.delay_s)
                server.sendall(first)
                _copy(connection, server, lambda: self.delay_s, lambda: self.answer is not None)
                back.join()

    @staticmethod
    def _refuse(connection: socket.socket, first: bytes, status: int, code: str) -> None:
        body = ERROR.format(code=code).encode()
        head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + (b"" if first.startswith(b"HEAD ") else body))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):  # else a reset may overtake the answer
            pass


def _copy(
    source: socket.socket,
    target: socket.socket,
    delay_s: Callable[[], float],
    ends: Callable[[], bool] = lambda: False,
) -> None:
    with suppress(OSError):
        while (piece := source.recv(1 << 16)) and not ends():
            time.sleep(delay_s())
            target.sendall(piece)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
