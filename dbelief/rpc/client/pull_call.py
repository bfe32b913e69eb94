"""State of one pull at one shard: its request, and the handling of its replies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement
from dbelief.core.push import Pusher
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import pusher_to_wire

from .shard_call import ShardCall


class PullCall(ShardCall):
    """A pull from one shard into `out`, which begins at number `origin` of the vector; float32 is encoded by `codec`.

    `waited_s` is the time until the shard reported that the requested clock was reached.
    """

    method = "Pull"

    def __init__(
        self,
        job: str,
        place: ShardPlacement,
        run: Sequence[SegmentSpan],
        out: np.ndarray,
        versions: np.ndarray,
        vector: str,
        clock: int = 0,
        pusher: Pusher | None = None,
        origin: int = 0,
        codec: segments.Codec.ValueType = segments.CODEC_FP32,
    ) -> None:
        super().__init__(job, place, run)
        self._out, self._versions, self._origin = out, versions, origin
        self._began_s, self.waited_s = time.perf_counter(), 0.0
        self._request = wire.PullRequest(vector=vector, clock=clock, codec=codec)
        if pusher is not None:
            self._request.pusher.CopyFrom(pusher_to_wire(pusher))

    def requests(self) -> Iterator[bytes]:
        """One request, for the remaining segments."""
        left = [span.index for span in self.run[self.done :]]
        request = wire.PullRequest(target=self.target, segments=left)
        request.MergeFrom(self._request)
        held = self._versions[left]
        if (held >= 0).all():
            request.if_newer_than.extend(held.tolist())
        if self._shared[0] is not None:
            request.shared.CopyFrom(self._shared[0])
        yield request.SerializeToString()

    def take(self, answer: object) -> None:
        """Store the received segments in `out`."""
        assert isinstance(answer, bytes)
        _, parts = bulk.decode(answer)
        if not parts:
            self.waited_s = time.perf_counter() - self._began_s
        for part in parts:
            span = self._next(part)
            if not part.unchanged:
                out = self._out[span.start - self._origin : span.stop - self._origin]
                self._fill(part, out, self._shared[0])
                # An unchanged version was not written again.
                self.shared_received += out.nbytes * (part.shared and part.version != self._versions[span.index])
            self._versions[span.index] = part.version
            self.done += 1

    def unshare(self) -> None:
        """See `ShardCall`; segments that are not done may be partly written, and have no version."""
        super().unshare()
        for span in self.run[self.done :]:
            self._versions[span.index] = -1
