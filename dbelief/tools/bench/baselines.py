"""Baselines without a protocol: a memory copy, and the same bytes through a socket."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.launch.child_process import Way

from .control_socket import Line
from .interleave import SOCKET
from .peers import DIRECT, Peer


class MemoryCopy:
    """Copy of one array into another, on one thread."""

    name, turns = "copy", ("copy",)

    def prepare(self, size: int) -> None:
        """See `MeasuredWay`."""
        self._target, self._source = aligned(size, np.uint8), aligned(size, np.uint8)
        self._target[:], self._source[:] = 1, 2

    def turn(self, what: str) -> float:
        """See `MeasuredWay`."""
        began = time.perf_counter()
        np.copyto(self._target, self._source)
        return time.perf_counter() - began


class Socket:
    """A block sent through a socket into preallocated memory; a push is acknowledged by a line.

    Parameters
    ----------
    fast
        Use the fastest known socket settings (see `block_for`).
    way
        Starts the peer.
    """

    turns = ("pull", "push")

    def __init__(self, stack: ExitStack, folder: Path, fast: bool = False, way: Way = DIRECT) -> None:
        self.name = "socket, aligned memory" if fast else SOCKET
        self._fast = fast
        self._peer = stack.enter_context(Peer("socket", folder, "fast-socket" if fast else "socket", way))

    def prepare(self, size: int) -> None:
        """See `MeasuredWay`."""
        self._peer.ask({"bytes": size, "fast": self._fast})
        self._block = block_for(self._peer.line, size, self._fast)

    def turn(self, what: str) -> float:
        """See `MeasuredWay`."""
        began = time.perf_counter()
        self._peer.line.send_message(what)
        if what == "pull":
            self._peer.line.receive(self._block)
        else:
            self._peer.line.send(self._block)
            self._peer.receive_message()
        return time.perf_counter() - began


def block_for(line: Line, size: int, fast: bool) -> memoryview:
    """Memory for the blocks of a line; also configures the line's socket.

    `fast` selects the fastest known way: the memory starts at a multiple of 64 bytes, where the kernel copies at twice
    the rate, provided that each call requests only the bytes that are ready. Otherwise NumPy chooses the address.
    """
    if fast:
        return aligned(size, np.uint8).data.cast("B")
    line.wait_in_kernel()
    return np.ones(size, np.uint8).data.cast("B")


def be_socket(line: Line) -> None:
    """Run the socket peer: hold a block, send it and receive it."""
    block = memoryview(b"")
    while (request := line.receive_message()) is not None:
        if request == "pull":
            line.send(block)
            continue
        if request == "push":
            line.receive(block)
        else:
            block = block_for(line, request["bytes"], request["fast"])
        line.send_message("done")
