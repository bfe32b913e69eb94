"""A port that passes connections on to another one, and can cut or stall them: the link to a process as packets see it.

It works below gRPC, so it is the same for plain TCP and for TLS, and for every caller of the process.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

PIECE = 1 << 16
"""Bytes that pass at once."""


class Proxy:
    """A link to a port of this machine; its threads end with `close`.

    Attributes
    ----------
    port
        Where it listens, on 127.0.0.1.
    target
        The port that it passes connections on to; where none is given, one that is free when the proxy is made.
    """

    def __init__(self, target: int | None = None) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.target: int = target or free.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut_until_s = self._stalled_until_s = 0.0
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self, seconds: float) -> None:
        """Break all connections, and refuse new ones for some time."""
        self._cut_until_s = time.monotonic() + seconds
        self._break()

    def stall(self, seconds: float) -> None:
        """Let nothing pass for some time, in silence; then all of it."""
        self._stalled_until_s = time.monotonic() + seconds

    def close(self) -> None:
        """Break all connections for good."""
        self._cut_until_s = float("inf")
        self._server.close()
        self._break()

    def _break(self) -> None:
        with self._lock:
            broken, self._open = self._open, set()
        for end in broken:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near = self._server.accept()[0]
                if time.monotonic() < self._cut_until_s:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self.target), 10.0)
                except OSError:  # its process is gone
                    near.close()
                    continue
                far.settimeout(None)
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), name="link", daemon=True).start()

    def _forward(self, piece: bytes, sink: socket.socket) -> None:
        while (left_s := self._stalled_until_s - time.monotonic()) > 0:
            time.sleep(left_s)
        sink.sendall(piece)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # broken by either end, or cut
            while piece := source.recv(PIECE):
                self._forward(piece, sink)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}
        # Each thread closes what it reads from: no other one still waits there.
        source.close()
