"""torch's transports between processes: gloo's send and receive, and RPC with the tensorpipe agent.

An RPC agent keeps a core busy even without calls, so it is measured in separate rounds, together with a socket.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.wire.peer_process import start_peer
from dbelief.tools.bench.control_socket import Line
from dbelief.tools.bench.peers import Peer

if TYPE_CHECKING:
    from torch import Tensor


def _two(stack: ExitStack, folder: Path, kind: str) -> list[Peer]:
    """Two peer processes, connected to each other and ready."""
    meeting = (folder / f"{kind}.meeting").absolute().as_uri()  # a file: a port would be open to every local user
    peers = [stack.enter_context(start_peer(kind, folder, f"{kind}-{rank}")) for rank in range(2)]
    for rank, peer in enumerate(peers):
        peer.line.send_message({"rank": rank, "meeting": meeting})
    for peer in peers:
        peer.receive_message()
    return peers


# -- gloo ----------------------------------------------------------------------------------------------------


class Gloo:
    """A tensor sent from rank to rank; a push is acknowledged by one number."""

    name, turns = "gloo", ("pull", "push")

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._ranks = _two(stack, folder, "gloo")

    def prepare(self, size: int) -> None:
        """See `MeasuredWay`."""
        self._both({"bytes": size})

    def turn(self, what: str) -> float:
        """See `MeasuredWay`."""
        return float(self._both(what))

    def _both(self, message: Any) -> Any:
        """Send a message to both ranks; return the first one's answer, once both have answered."""
        for rank in self._ranks:
            rank.line.send_message(message)
        answers = [rank.receive_message() for rank in self._ranks]
        return answers[0]


def be_rank(line: Line) -> None:
    """Run one of two gloo ranks; rank 0 receives and sends blocks, and reports the seconds of each operation."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    from torch import distributed

    settings = line.receive_message()
    torch.set_num_threads(1)
    rank, other = settings["rank"], 1 - settings["rank"]
    distributed.init_process_group("gloo", init_method=settings["meeting"], rank=rank, world_size=2)
    line.send_message("ready")
    block, done = torch.zeros(0), torch.zeros(1)
    while (what := line.receive_message()) is not None:
        began = time.perf_counter()
        if isinstance(what, dict):
            block = torch.zeros(what["bytes"] // 4)
        else:
            gives = (what == "pull") == (rank == 1)
            (distributed.send if gives else distributed.recv)(block, other)
            if what == "push":
                (distributed.recv if gives else distributed.send)(done, other)
        line.send_message(time.perf_counter() - began)
    distributed.destroy_process_group()


# -- RPC -----------------------------------------------------------------------------------------------------


class TorchRpc:
    """A tensor returned by a remote call, or passed to a remote call that returns nothing."""

    name, turns = "torch RPC", ("pull", "push")

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._caller, _ = _two(stack, folder, "torch-rpc")

    def prepare(self, size: int) -> None:
        """See `MeasuredWay`."""
        self._caller.ask({"bytes": size})

    def turn(self, what: str) -> float:
        """See `MeasuredWay`."""
        return float(self._caller.ask(what))


_HELD: list[Tensor] = []
"""Tensor that the called process holds: RPC calls module functions, so the state is global."""


def _hold(tensor: Tensor) -> None:
    _HELD[:] = [tensor]


def _held() -> Tensor:
    return _HELD[0]


def be_agent(line: Line) -> None:
    """Run one of two RPC agents; the first calls the second, and reports the seconds of each operation."""
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    import torch
    from torch.distributed import rpc

    settings = line.receive_message()
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=settings["meeting"])
    rpc.init_rpc(f"agent-{settings['rank']}", rank=settings["rank"], world_size=2, rpc_backend_options=options)
    line.send_message("ready")
    block = torch.zeros(0)
    while (what := line.receive_message()) is not None:
        if isinstance(what, dict):
            block = torch.ones(what["bytes"] // 4)
        began = time.perf_counter()
        if what == "pull":
            rpc.rpc_sync("agent-1", _held)
        else:
            rpc.rpc_sync("agent-1", _hold, args=(block,))
        line.send_message(time.perf_counter() - began)
    rpc.shutdown(graceful=False)
