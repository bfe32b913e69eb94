"""The other ends of what `dbelief bench wire` measures against, each a process: a socket, gloo, further workers.

A peer connects to the process that measures, is told what to do line by line, as JSON, and answers in the same way.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dbelief.backend import aligned
from dbelief.errors import Failure, Unreachable
from dbelief.processes import Child, end_all

WAIT_S = 120.0
"""How long either end may be silent."""


class Line:
    """A connection that carries JSON lines, and between them blocks of bytes of a known length."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(WAIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_in_kernel(self) -> None:
        """Be a socket as it comes: a call waits where it is, and is not made again for each bit that is ready."""
        self._socket.settimeout(None)
        for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(WAIT_S), 0))

    def tell(self, message: Any) -> None:
        """Send one line; that nobody is there shows when the answer is missing."""
        self.send(memoryview(json.dumps(message).encode() + b"\n"))

    def hear(self) -> Any:
        """The next line; None where the other end is gone."""
        line = bytearray()
        while not line.endswith(b"\n"):  # byte by byte: what follows the line may be a block
            byte = bytearray(1)
            if not self._fill(memoryview(byte)):
                return None
            line += byte
        return json.loads(line)

    def send(self, block: memoryview) -> None:
        """Send a block; as `tell`."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(block)

    def receive(self, block: memoryview) -> None:
        """Fill a block."""
        filled = 0
        while filled < len(block):
            count = self._fill(block[filled:])
            if not count:
                raise Unreachable("the other end of the socket is gone")
            filled += count

    def _fill(self, block: memoryview) -> int:
        try:
            return self._socket.recv_into(block)
        except ConnectionError:
            return 0
        except (TimeoutError, BlockingIOError):
            raise Unreachable(f"nothing came through the socket for {WAIT_S:g} s") from None

    def close(self) -> None:
        """Close it; the peer ends."""
        self._socket.close()


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
            self.child = Child(name, ["bench", "peer", kind, "--connect", address], folder / f"{name}.log")
            self.child.start()
            until_s = time.monotonic() + WAIT_S
            while True:
                try:
                    self.line = Line(server.accept()[0])
                    return
                except TimeoutError:
                    if self.child.code is not None or time.monotonic() > until_s:
                        fate = self.child.fate()
                        end_all([self.child], 0.0)
                        raise Failure(f"no {kind} to measure: {fate}") from None

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
            raise Failure(self.child.fate())
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
        end_all([self.child])


# -- what a peer does ----------------------------------------------------------------------------------------


def run(kind: str, address: str) -> None:
    """Be a peer until the other end closes the connection."""
    host, _, port = address.rpartition(":")
    line = Line(socket.create_connection((host, int(port)), WAIT_S))
    try:
        KINDS[kind](line)
    finally:
        line.close()


def block_for(line: Line, size: int, fast: bool) -> memoryview:
    """Memory that a line is to carry, and the line made ready for it.

    `fast` is the quickest way of a socket that is known: the memory begins at a multiple of 64 bytes, where the kernel
    copies to and fro at twice the rate, as long as it is asked only for what is ready. Else it lies where NumPy has it.
    """
    if fast:
        return aligned(size, np.uint8).data.cast("B")
    line.wait_in_kernel()
    return np.ones(size, np.uint8).data.cast("B")


def _socket(line: Line) -> None:
    """Hold a block, give it and take it."""
    told = line.hear()
    block = block_for(line, told["bytes"], told["fast"])
    line.tell("ready")
    while (what := line.hear()) is not None:
        if what == "pull":
            line.send(block)
        else:
            line.receive(block)
            line.tell("done")


def _gloo(line: Line) -> None:
    """One of two ranks of torch's gloo; rank 0 takes and gives, and tells how long it took."""
    import torch
    from torch import distributed

    told = line.hear()
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{told['port']}", rank=told["rank"], world_size=2
    )
    block, done = torch.zeros(told["bytes"] // 4), torch.zeros(1)
    line.tell("ready")
    rank, other = told["rank"], 1 - told["rank"]
    while (what := line.hear()) is not None:
        began = time.perf_counter()
        gives = (what == "pull") == (rank == 1)
        (distributed.send if gives else distributed.recv)(block, other)
        if what == "push":
            (distributed.recv if gives else distributed.send)(done, other)
        line.tell(time.perf_counter() - began)
    distributed.destroy_process_group()


def _worker(line: Line) -> None:
    """A worker that only pulls and pushes; tells the seconds that each took, and the processor time of all."""
    from dbelief.layout import Span
    from dbelief.placement import Place, Placement
    from dbelief.pushes import Push, Pusher
    from dbelief.rpc.parameters import ShardedParameters

    told = line.hear()
    spans = tuple(Span(*row) for row in told["spans"])
    placement = Placement(1, spans, tuple(Place(*row) for row in told["places"]))
    pusher = Pusher(*told["pusher"])
    first, stop = told["part"] or (0, placement.size)
    client = ShardedParameters(
        told["job"], placement, (told["rule"], told["options"]), pusher, WAIT_S / 2, part=(first, stop)
    )
    out, gradient = aligned(stop - first, np.float32), aligned(stop - first, np.float32)
    gradient[:] = np.resize(np.random.default_rng(0).standard_normal(1 << 16, np.float32), stop - first)
    versions = np.zeros(len(spans), np.int64)
    numbers = itertools.count(1)

    def pull() -> None:
        versions[:] = -1
        client.pull(out, versions)

    def push() -> None:
        client.push(gradient, versions, Push(pusher, next(numbers), np.float32(1e-6)))

    turns = {"pull": pull, "push": push}
    try:
        line.tell("ready")
        while (order := line.hear()) is not None:
            seconds = []
            used_s = time.process_time()
            for what in order["turns"] * order["times"]:
                began = time.perf_counter()
                turns[what]()
                seconds.append(time.perf_counter() - began)
            line.tell({"seconds": seconds, "cpu_s": time.process_time() - used_s})
    finally:
        client.close()


KINDS: dict[str, Callable[[Line], None]] = {"socket": _socket, "gloo": _gloo, "worker": _worker}
