"""Engine for ranks with a GPU each, over NCCL as included in CuPy 14 or newer (`cupy.cuda.nccl`).

Written against the API and checked against its signatures; NOT YET VERIFIED ON SEVERAL GPUs. Work is queued on CuPy's
current stream, which orders it after packing and before unpacking. What NCCL lacks comes from `control`, an engine of
the same ranks on the host (threads or MPI): the unique id at the start, and failure notices. NCCL has no tags either:
messages between two ranks match in the order they were started in. Messages that depend on each other (a send and a
receive of two ranks that do both) must be started together, as one NCCL group.

A deadline is kept by polling an event with growing pauses. It does not cover calls that block inside NCCL: creating the
communicator, and the connection that the first message between two ranks sets up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dbelief.process.clock import Clock, SystemClock

from .engine import Engine, Handle, Message, timed_out
from .polling import poll

ID_BYTES = 128
START_S = 60.0


class NcclEngine:
    """One rank, on CuPy's current device; transfers CuPy arrays. Construction is collective.

    Parameters
    ----------
    control
        Engine of the same ranks on the host.
    """

    def __init__(self, control: Engine, clock: Clock | None = None) -> None:
        import cupy
        from cupy.cuda import nccl

        self.xp: Any = cupy
        self._nccl: Any = nccl
        self._control = control
        self._clock: Clock = clock or SystemClock()
        self.rank, self.size = control.rank, control.size
        self._group: Any = nccl.NcclCommunicator(self.size, self._unique_id(), self.rank)

    def _unique_id(self) -> bytes:
        """Unique id, which rank 0 generates and sends to all others."""
        made = np.zeros(ID_BYTES, np.uint8)
        peers = range(1, self.size) if self.rank == 0 else (0,)
        if self.rank == 0:
            made[:] = np.frombuffer(self._nccl.get_unique_id(), np.uint8)
        self._control.start([Message(self.rank == 0, made, peer) for peer in peers]).wait(START_S)
        return made.tobytes()

    def start(self, messages: Sequence[Message]) -> Handle:
        """Queue all messages on the current stream, as one NCCL group."""
        self.check()
        stream = self.xp.cuda.get_current_stream()
        self._nccl.groupStart()
        try:
            for message in messages:
                call = self._group.send if message.sends else self._group.recv
                array = message.array
                call(array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, message.peer, stream.ptr)
        finally:
            self._nccl.groupEnd()
        event = self.xp.cuda.Event(disable_timing=True)
        event.record(stream)
        return Handle(partial(self._wait, event, messages))

    def _wait(self, event: Any, messages: Sequence[Message], deadline_s: float) -> None:
        """Poll until the stream has passed `event`; see `Handle`."""

        def over() -> bool:
            if event.done:
                return True
            self.check()
            self._group.check_async_error()
            return False

        if not poll(self._clock, over, deadline_s):
            raise timed_out(deadline_s, self.rank, messages)

    def check(self) -> None:
        """Raise RankFailure if a rank has failed."""
        self._control.check()

    def abort(self, error: BaseException) -> None:
        """Notify the other ranks through `control`, and abort pending work on the stream."""
        self._control.abort(error)
        self._group.abort()

    def close(self) -> None:
        """Destroy the communicator; the caller closes `control`."""
        self._group.destroy()
