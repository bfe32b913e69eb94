"""Entry point of the peer processes: each kind of peer and its function."""

from __future__ import annotations

import socket
from collections.abc import Callable

from . import baselines, ray_peer, torch_peer, workers
from .control_socket import WAIT_S, Line

KINDS: dict[str, Callable[[Line], None]] = {
    "socket": baselines.be_socket,
    "gloo": torch_peer.be_rank,
    "torch-rpc": torch_peer.be_agent,
    "ray": ray_peer.be_driver,
    "worker": workers.be_worker,
}


def run(kind: str, address: str) -> None:
    """Run a peer until the other end closes the connection."""
    host, _, port = address.rpartition(":")
    line = Line(socket.create_connection((host, int(port)), WAIT_S))
    try:
        KINDS[kind](line)
    finally:
        line.close()
