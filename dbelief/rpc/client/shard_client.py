"""Client of the shards: pull and push of the complete vector or one rank's range of it, all shards concurrently.

Cost of a pull or push of N numbers in S segments on K shards: 4N bytes in at most S messages, K where segments are
small; one copy of the array into messages on push, one out of them on pull. A codec sends fewer bytes; a codec with a
residual costs N float32 more, and, during a push, the encoded payloads. Streams are reused from call to call. Those of
all shards run concurrently; replies are read in rotation.

A stream that breaks is reopened and resumes at the first segment that was not acknowledged, at its current shard; the
shard's ledger makes the retry idempotent. Where the shard has a new incarnation, its portion of a push restarts, with
the push's sequence number as base: acknowledged pushes that were lost are returned as `PushResult.lost`. The deadline
bounds the time without a segment, never the complete transfer.

Shards on the same host read and write arrays made by `array` in place, and messages hold only their location. A
direction that has a codec does not use shared memory, so that results do not depend on which processes share a host.
Where a stream breaks, its shard may still access the memory for some time: the block is abandoned and replaced by a
copy, and the rest of this call uses TCP.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np

from dbelief.arrays.push_source import HostSource, Source
from dbelief.arrays.shared_memory import Block
from dbelief.arrays.vector_kernels import compiled
from dbelief.codec import Codec
from dbelief.core.layout import Range, SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import PARAMETERS, Push, Pusher, PushResult
from dbelief.errors import Moved, Unavailable
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.channel import named_errors
from dbelief.rpc.coordination_pb2 import WireFigures
from dbelief.rpc.wire.payloads import AS_THEY_ARE, Codecs, Payloads

from .pull_call import PullCall
from .push_call import ExchangeCall, PushCall
from .shard_call import ShardCall
from .shared_buffers import SharedBuffers
from .stream_pool import StreamPool, Watchdog

L = TypeVar("L", bound=ShardCall)

_RETRY_S = (0.05, 0.1, 0.2, 0.3)
"""Pauses before a shard call is retried; the last one applies to all further retries. It bounds the idle time of a
shard that is available again."""
_READ_AT_ONCE = 2
"""Segments that `each_segment` holds at a time: more is not faster, and needs more memory in a model export."""


class ShardedParameterClient:
    """`Parameters` over gRPC. Pulls and pushes may come from different threads.

    Parameters
    ----------
    job
        The job's id.
    placement
        Shard of each segment; updated by `refresh`.
    rule
        Name and options of the job's rule, sent with every push.
    pusher
        Identity for pulls and pushes; None for a reader.
    deadline_s
        Time without a segment after which a stream is reopened, like a broken one; after twice this time a call fails.
    refresh
        Called when a shard cannot be reached, or has another incarnation than the one known; returns the current
        placement, or raises where the job is over. None: the placement is fixed.
    part
        One rank's range of the vector that pulls and pushes cover: arrays have its length, and shards without segments
        in it are not contacted. None: the complete vector.
    shares_memory
        Whether arrays are allocated in memory that shards on this host may attach.
    codecs
        Encoding of float32. Assignments and exact pulls are not encoded.

    Attributes
    ----------
    retries
        Shard calls that were retried, so far.
    sent, received
        Bytes of segments' payloads in messages, so far.
    shared_sent, shared_received
        Bytes of segments that went through shared memory instead, so far.
    """

    def __init__(
        self,
        job: str,
        placement: Placement,
        rule: tuple[str, dict[str, float]] = ("assign", {}),
        pusher: Pusher | None = None,
        deadline_s: float = 60.0,
        refresh: Callable[[], Placement] | None = None,
        part: Range | None = None,
        shares_memory: bool = True,
        codecs: Codecs = AS_THEY_ARE,
    ) -> None:
        self.job = job
        self.placement = placement
        self.retries = self.sent = self.received = self.shared_sent = self.shared_received = 0
        self._counting = threading.Lock()
        self._codecs = codecs
        self._residuals: dict[str, np.ndarray] = {}  # by vector: residual of its pushes
        self._rule = segments.Rule(name=rule[0], options=rule[1])
        self._pusher = pusher
        self._deadline_s = deadline_s
        self._refresh = refresh
        self._part = part
        self._origin = part[0] if part is not None else 0
        self._streams = StreamPool()
        self._watchdog = Watchdog(deadline_s)
        leads = pusher is None or not pusher.rank
        self._sharing = SharedBuffers(job, self._streams, self._watchdog, shares_memory, tells=leads)
        self._pushed_in: dict[str, int] = {}  # by vector: placement epoch at the start of the last push

    def close(self) -> None:
        """Close all channels."""
        self._watchdog.close()
        self._sharing.close()
        self._streams.close()

    def array(self, size: int) -> np.ndarray:
        """See `Parameters.array`."""
        return self._sharing.array(size)

    def figures(self) -> WireFigures:
        """Traffic with the shards so far, and the 1-norm of the residuals that later pushes will send.

        Call it only while no push is running. Cost: one pass over each residual.
        """
        residual = sum(float(compiled("norm1")(kept)) for kept in self._residuals.values())
        shared = {"shared_sent": self.shared_sent, "shared_received": self.shared_received}
        return WireFigures(sent=self.sent, received=self.received, residual=residual, **shared)

    def pull(
        self,
        out: np.ndarray,
        versions: np.ndarray,
        *,
        vector: str = PARAMETERS,
        clock: int = 0,
        exact: bool = False,
    ) -> float:
        """See `Parameters.pull`; `exact`: without a codec.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        """
        codec = segments.CODEC_FP32 if exact else self._codecs.asked
        legs = [
            PullCall(self.job, place, run, out, versions, vector, clock, self._pusher, self._origin, codec)
            for place, run in self._runs()
        ]
        self._run(legs, out if codec == segments.CODEC_FP32 else None)
        return max((leg.waited_s for leg in legs), default=0.0)

    def each_segment(self, vector: str = PARAMETERS) -> Iterator[tuple[SegmentSpan, np.ndarray]]:
        """Read a named vector by segments: each segment with its (length,) float32, valid until the next iteration."""
        placement = self.placement
        versions = np.empty(len(placement.spans), np.int64)
        for place in placement.places:
            run = placement.run(place)
            for first in range(0, len(run), _READ_AT_ONCE):
                some = run[first : first + _READ_AT_ONCE]
                origin = some[0].start
                out = np.empty(some[-1].stop - origin, np.float32)
                versions[:] = -1
                self._run([PullCall(self.job, place, some, out, versions, vector, origin=origin)])
                for span in some:
                    yield span, out[span.start - origin : span.stop - origin]

    def push(self, values: np.ndarray | Source, versions: np.ndarray, push: Push) -> PushResult:
        """See `Parameters.push`; `values` may also be outside host memory.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        """
        source = HostSource(values) if isinstance(values, np.ndarray) else values
        legs = [
            PushCall(self.job, place, run, source, versions, push, self._rule, self._payloads(push), self._origin)
            for place, run in self._runs()
        ]
        try:
            self._run(legs, values if self._codec_of(push) is None else None)
        except BaseException:
            for leg in legs:
                leg.give_back()
            raise
        duplicates = sum(leg.duplicates for leg in legs)
        applied = sum(len(leg.run) for leg in legs) - duplicates
        lost = max((leg.lost for leg in legs), default=0)
        return PushResult(sum(leg.staleness for leg in legs) / max(1, applied), duplicates, lost)

    def exchange(self, values: np.ndarray | Source, out: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        """Send a worker's own weights, and receive "w" as it was before the rule moved it towards them.

        Parameters
        ----------
        values, out
            (N,) float32, or of the length of a rank's range; they may alias only where no stream breaks.
        versions
            (segments,) int64: those stored by this pusher's last pull or exchange; overwritten.

        Returns
        -------
        PushResult
            Its staleness: exchanges of other pushers since this pusher's previous one, a mean over the segments.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        """
        payloads, asked = self._payloads(push), self._codecs.asked
        source = HostSource(values) if isinstance(values, np.ndarray) else values
        legs = [
            ExchangeCall(self.job, place, run, source, out, versions, push, self._rule, payloads, self._origin, asked)
            for place, run in self._runs()
        ]
        shared = values if self._codec_of(push) is None else None
        self._run(legs, shared, out if self._codecs.pull is None else None)
        segments_here = sum(len(leg.run) for leg in legs)
        lost = max((leg.lost for leg in legs), default=0)
        return PushResult(sum(leg.staleness for leg in legs) / max(1, segments_here), 0, lost)

    def _runs(self) -> list[tuple[ShardPlacement, Sequence[SegmentSpan]]]:
        """Shards that hold segments in this client's range, each with those segments."""
        placement = self.placement
        runs = ((place, placement.run(place, self._part)) for place in placement.places)
        return [(place, run) for place, run in runs if run]

    def _codec_of(self, push: Push) -> Codec | None:
        return None if push.assign else self._codecs.push

    def _payloads(self, push: Push) -> Payloads:
        """Payload encoder of a push, with the residual of its vector where the codec keeps one."""
        codec = self._codec_of(push)
        if codec is None or not codec.keeps:
            return Payloads(codec)
        if push.vector not in self._residuals:
            first, stop = self._part or (0, self.placement.size)
            self._residuals[push.vector] = np.zeros(stop - first, np.float32)
        return Payloads(codec, self._residuals[push.vector], self._origin, self._codecs.starts)

    # -- shard calls -------------------------------------------------------------------------------------

    def _run(self, legs: list[L], *arrays: np.ndarray | Source | None) -> None:
        """Start all shard calls, then read replies in rotation until all are done; calls after a migration are added.

        `arrays` are the call's arrays, in the order of `ShardCall.lies`.
        """
        blocks = self._share(legs, arrays)
        began_in = self.placement.epoch
        try:
            for leg in legs:
                self._begin(leg)
            left = deque(legs)
            while left:
                leg = left.popleft()
                try:
                    if leg.stream is None:
                        left += self._go_on(leg, legs)
                        continue
                    self._step(leg)
                except Moved as trouble:
                    self._broke(leg, trouble)  # a reply: the shard has finished with this call
                except Unavailable as trouble:
                    for other in self._unshare(legs, blocks):
                        if other is not leg and other.stream is not None:
                            self._drop(other)
                            self._begin(other)
                    self._broke(leg, trouble)
                if leg.stream is not None and leg.done >= len(leg.run):
                    self._finished(leg)
                else:
                    left.append(leg)
            for leg in legs:
                if isinstance(leg, PushCall):
                    self._pushed_in[leg.push.vector] = began_in
        finally:
            for leg in legs:
                self._drop(leg)
            self._unshare(legs, blocks)
            with self._counting:
                self.sent += sum(leg.sent for leg in legs)
                self.received += sum(leg.received for leg in legs)
                self.shared_sent += sum(leg.shared_sent for leg in legs)
                self.shared_received += sum(leg.shared_received for leg in legs)

    def _share(self, legs: Sequence[ShardCall], arrays: Sequence[np.ndarray | Source | None]) -> Collection[Block]:
        """Let shards on this host access the arrays in place; returns the blocks in use."""
        lies = [self._sharing.find(array) if isinstance(array, np.ndarray) else None for array in arrays]
        blocks = {found.block for found in lies if found is not None}
        if blocks:
            self._sharing.attach(blocks, [leg.place for leg in legs])
            for leg in legs:
                leg.lies = lies
        return blocks

    def _unshare(self, legs: Sequence[L], blocks: Collection[Block]) -> list[L]:
        """Abandon blocks that shards may still access; returns the calls that continue without shared memory."""
        using = [leg for leg in legs if leg.shares]
        if using:
            for leg in using:
                leg.unshare()
            self._sharing.renew(blocks)
        return using

    def _begin(self, leg: ShardCall) -> None:
        """Queue all remaining requests on a stream."""
        if isinstance(leg, PushCall):
            # In a new placement epoch, a shard may have failed and lost its state, including segments that were
            # migrated to this shard since. The push's own number as base lets the shard report that loss.
            moved = self._pushed_in.get(leg.push.vector) != self.placement.epoch and leg.push.sequence > 1
            leg.begin(leg.push.sequence if moved else leg.push.base)
        leg.share([self._sharing.seen(leg.place, found, self._origin) for found in leg.lies])
        leg.stream = self._streams.take(leg.place.address, leg.method)
        leg.stream.give(leg.requests())

    def _step(self, leg: ShardCall) -> None:
        """Wait for one reply and process it."""
        assert leg.stream is not None
        if not leg.tries:
            leg.waiting_since_s = time.monotonic()
        with named_errors(leg.where), self._watchdog.watching(leg.stream):
            answer = leg.stream.answer()
        if answer is None:
            raise Unavailable(f"{leg.where}: ended after {leg.done} of {len(leg.run)} segments")
        leg.take(answer)
        leg.tries = 0

    def _finished(self, leg: ShardCall) -> None:
        """Return the stream to the pool."""
        assert leg.stream is not None
        self._streams.put_back(leg.place.address, leg.method, leg.stream)
        leg.stream = None

    def _drop(self, leg: ShardCall) -> None:
        """Cancel the call's stream, if it has one."""
        if leg.stream is not None:
            leg.stream.cancel()
            leg.stream = None

    def _broke(self, leg: ShardCall, trouble: Unavailable | Moved) -> None:
        """Schedule the retry of a shard call in another stream.

        Raises
        ------
        Unavailable
            It has made no progress for twice the deadline, so a stalled stream has been retried once.
        Moved
            No `refresh` is available to find the shard's new location.
        """
        stale = leg.stream is not None and leg.stream.stale and isinstance(trouble, Unavailable)
        self._drop(leg)
        if stale:  # it broke while idle: no information about the shard
            self._begin(leg)
            return
        if self._refresh is None and isinstance(trouble, Moved):
            raise trouble
        still_s = time.monotonic() - leg.waiting_since_s
        if still_s + self._pause_s(leg) >= 2 * self._deadline_s:
            reason = str(trouble).removeprefix(f"{leg.where}: ")
            raise Unavailable(f"{leg.where}: {reason}; no segment for {still_s:.3g} s") from trouble

    @staticmethod
    def _pause_s(leg: ShardCall) -> float:
        return _RETRY_S[min(leg.tries, len(_RETRY_S) - 1)]

    def _go_on(self, leg: L, legs: list[L]) -> list[L]:
        """After a pause, resume at the segments' current shards; returns the calls that do."""
        time.sleep(self._pause_s(leg))
        leg.tries += 1
        self.retries += 1
        if self._refresh is not None:
            before, self.placement = self.placement, self._refresh()
            known = {leg.place.address, *(place.address for place in before.places)}
            for gone in known - {place.address for place in self.placement.places}:
                self._sharing.leave(gone)
                self._streams.leave(gone)
        if leg.stays(self.placement):  # unchanged, or its failure is not known yet: finished segments stay in one
            self._begin(leg)  # call with the rest, and a new epoch resends them all
            return [leg]
        further = leg.go_on(self.placement)
        legs += further
        for one in further:
            self._begin(one)
        return further
