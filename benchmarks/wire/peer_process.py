"""Peer processes of `benchmarks.wire.peers`: the same script, with the options `--peer` and `--connect`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import checkout
from dbelief.launch.child_process import Direct
from dbelief.tools.bench.peers import Peer

SCRIPT = Path(__file__).with_name("peers.py")


def start_peer(kind: str, folder: Path, name: str | None = None) -> Peer:
    """A peer process, of a kind of `benchmarks.wire.peers`; `folder`: of its log."""
    return Peer(kind, folder, name, Direct([*checkout.command(str(SCRIPT)), "--peer"]), command=())
