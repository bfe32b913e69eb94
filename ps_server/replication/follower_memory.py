"""Memory of workers on this host, which a leader passes on to its follower, and the follower's local stream.

A push through shared memory is not copied for the follower: its record names the worker's block, and the follower
applies it from there. That is as safe as it is for the leader: the numbers stay until the push is acknowledged, which
needs the follower, or their block is left to the processes that have it (decision 0012).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dbelief.arrays.shared_memory import block_of
from dbelief.core.placement import ShardPlacement
from dbelief.errors import RuntimeFailure
from dbelief.process.runtime import Thread, runtime
from dbelief.rpc.channel import named_errors
from dbelief.rpc.client.local_stream import LocalStream
from dbelief.rpc.client.shared_buffers import SharedBuffers
from dbelief.rpc.client.stream_pool import StreamPool
from dbelief.rpc.client.watchdog import Watchdog
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb.segments_pb2 import SharedArray
from dbelief.rpc.wire import bulk


class FollowerMemory:
    """Blocks and the local stream of one follower; used by the thread that makes its messages.

    Parameters
    ----------
    follower
        Address and incarnation of the follower.
    streams
        Pool with the channel of its `Carry` stream: a block belongs to a connection.
    watchdog
        Ends calls about blocks that the follower does not answer.
    """

    def __init__(self, job: str, follower: ShardPlacement, streams: StreamPool, watchdog: Watchdog) -> None:
        self._follower = follower
        self._sharing = SharedBuffers(job, streams, watchdog, wanted=True, logs=False)
        self._stream: LocalStream | None = None
        self._reader: Thread | None = None

    def reference(self, numbers: np.ndarray, origin: int) -> SharedArray | None:
        """Where the follower finds numbers that begin at number `origin` of the vector; None: it cannot read them.

        Cost: the first use of a block is a call, of 5 s at most where the follower does not answer.
        """
        block = block_of(numbers)
        if block is None or not block.name:
            return None
        self._sharing.add(block)
        location = self._sharing.find(numbers)
        (found,) = self._sharing.references(self._follower, [location], origin)
        if found is None and location is not None:
            self._sharing.attach([block], [self._follower])
            (found,) = self._sharing.references(self._follower, [location], origin)
        return found

    def release(self) -> None:
        """Detach the blocks of workers that have ended."""
        self._sharing.attach([], [self._follower])

    def open_stream(self, acknowledged: Callable[[int], None], lost: Callable[[str], None]) -> LocalStream | None:
        """Open the local stream; None where the follower is on another host, or has no block yet.

        Parameters
        ----------
        acknowledged, lost
            Called by another thread: with the number of messages acknowledged since the call before; at the end, with
            the reason.
        """
        self._stream = self._sharing.local_stream(self._follower, "Carry")
        if self._stream is not None:
            self._reader = runtime.spawn(_read, "follower-local", self._stream, acknowledged, lost)
        return self._stream

    def close(self) -> None:
        """End the local stream, and detach all blocks."""
        if self._stream is not None and self._reader is not None:
            self._stream.cancel()
            self._reader.join()
            self._stream.end()
        self._sharing.close()


def _read(stream: LocalStream, acknowledged: Callable[[int], None], lost: Callable[[str], None]) -> None:
    """Read acknowledgements until the stream ends."""
    before, why = 0, "it ended the local stream"
    try:
        with named_errors("follower"):
            while (reply := stream.answer()) is not None:
                received = bulk.parse(wire.CarryReply, reply).received
                acknowledged(received - before)
                before = received
    except RuntimeFailure as error:
        why = str(error)
    lost(why)
