"""A port of this machine that leads to the coordinator's pod, as `kubectl port-forward` has one."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from dbelief.errors import RuntimeFailure

log = logging.getLogger(__name__)

_BYTES = 1 << 16
_ACCEPT_S = 0.5


class Forwarder:
    """Connections to a port on loopback, each carried to where `connect` leads; to be used in a `with` block.

    Parameters
    ----------
    connect
        A new connection; RuntimeFailure: there is none now, and the one that was accepted is closed.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(_ACCEPT_S)
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="forward", daemon=True)

    @property
    def address(self) -> str:
        """`host:port` of this machine."""
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._listening.close()
        with self._lock:
            for end in self._open:
                _close(end)
        self._thread.join()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                here, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            threading.Thread(target=self._carry, args=(here,), name="forwarded", daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        """Carry the bytes of one connection, in both directions, until one side closes it."""
        here.settimeout(None)
        try:
            there = self._connect()
        except RuntimeFailure as error:
            log.debug(f"{error}")
            here.close()
            return
        with self._lock:
            self._open |= {here, there}
        back = threading.Thread(target=_pump, args=(there, here), name="forwarded back", daemon=True)
        back.start()
        _pump(here, there)
        back.join()
        with self._lock:
            self._open -= {here, there}
        here.close()
        there.close()


def _pump(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_BYTES):
            to.sendall(data)
    _close(source)
    _close(to)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
