"""Memory of workers on this host, which a leader passes on to its follower, and the follower's local stream.

A push through shared memory is not copied for the follower: its record names the worker's block, and the follower
applies it from there. That is as safe as it is for the leader: the numbers stay until the push is acknowledged, which
needs the follower, or their block is left to the processes that have it (decision 0012).
"""

from __future__ import annotations

import numpy as np

from dbelief.arrays.shared_memory import block_of
from dbelief.core.placement import ShardPlacement
from dbelief.rpc.client.shared_buffers import SharedBuffers
from dbelief.rpc.client.socket_stream import SocketStream
from dbelief.rpc.client.stream_pool import StreamPool
from dbelief.rpc.client.watchdog import Watchdog
from dbelief.rpc.pb.segments_pb2 import SharedArray


class FollowerMemory:
    """Blocks that one follower shares, and its local stream; used by one thread at a time.

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

    def open_stream(self) -> SocketStream | None:
        """Open the local stream; None where the follower is on another host, or has no block yet."""
        return self._sharing.acquire(self._follower, "Carry")

    def close(self) -> None:
        """Detach all blocks."""
        self._sharing.close()
