"""What each kind of peer does until its line ends."""

from __future__ import annotations

import socket
from collections.abc import Callable

from . import plain, rays, torches, workers
from .line import WAIT_S, Line

KINDS: dict[str, Callable[[Line], None]] = {
    "socket": plain.be_socket,
    "gloo": torches.be_rank,
    "torch-rpc": torches.be_agent,
    "ray": rays.be_driver,
    "worker": workers.be_worker,
}


def run(kind: str, address: str) -> None:
    """Be a peer until the other end closes the connection."""
    host, _, port = address.rpartition(":")
    line = Line(socket.create_connection((host, int(port)), WAIT_S))
    try:
        KINDS[kind](line)
    finally:
        line.close()
