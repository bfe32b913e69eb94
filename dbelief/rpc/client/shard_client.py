"""The client of the shards: pull and push of the whole vector or a rank's part of it, every shard at once.

Cost of a pull or push of N numbers in S segments on K shards: 4N bytes in at most S messages, K where segments are
small; one copy of the array into messages on push, one out of them on pull. With a codec fewer bytes; one that keeps
what it leaves out costs N float32 more, and while a push is under way what is sent of it. Streams are kept from call
to call. Those of all shards run at the same time; answers are read in turn.

A stream that breaks is opened again and goes on from the first segment that was not acknowledged, wherever that lives
by then; the shard's ledger makes the repetition harmless. Where the shard is in another life, its part of a push begins
anew, with the push's number as base: what was acknowledged before and is gone comes back as `Pushed.lost`. The deadline
is "no segment for so long", never a limit on the whole.

Shards on the same host read and write arrays made by `array` where they lie, and messages only say where that is; but
for a way that has a codec, so that what comes of a job does not depend on who shares a host with whom. Where a stream
breaks, its shard may go on doing so for some time: so the arrays' memory is left to it and renewed, and what is not
done goes over TCP this once.
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
"""Pauses before a leg is begun again; the last one for all further times: as long as that a shard which is served again
may stand idle."""
_READ_AT_ONCE = 2
"""Segments that `each_segment` holds at a time; more is no faster, and what the coordinator needs to export a model."""


class ShardedParameterClient:
    """`Parameters` over gRPC. Pulls and pushes may come from different threads.

    Parameters
    ----------
    job
        The job's id.
    placement
        Where each segment lives; followed by `refresh`.
    rule
        Name and options of the job's rule, told with every push.
    pusher
        Who pulls and pushes; None for a reader.
    deadline_s
        A stream without a segment for so long is opened again, as a broken one is; after twice as long a call fails.
    refresh
        Called when a shard cannot be reached, or has another life than the one known; returns the placement as it is
        now, or raises where the job is over. None: shards stay where they are.
    part
        What pulls and pushes are about, where that is one rank's part of the vector: arrays are as long as it is, and
        shards that hold nothing of it are not spoken to.
    shares_memory
        Whether arrays lie in memory that shards on this host may have.
    codecs
        How float32 travels. What is assigned, and a pull that is to be exact, travels as it is.

    Attributes
    ----------
    retries
        Legs that were begun again after they broke, so far.
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
        self._residuals: dict[str, np.ndarray] = {}  # by vector: what pushes have left out
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
        self._pushed_in: dict[str, int] = {}  # by vector: epoch of the placement that the last push began in

    def close(self) -> None:
        """Close all channels."""
        self._watchdog.close()
        self._sharing.close()
        self._streams.close()

    def array(self, size: int) -> np.ndarray:
        """See `Parameters.array`."""
        return self._sharing.array(size)

    def figures(self) -> WireFigures:
        """What went to the shards and came from them so far, and what pushes have left out, to go with later ones.

        To be asked for where no push is under way. Cost: where something is kept, one pass over it.
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
        Unreachable, Refused
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
        """Read a named vector bit by bit: each segment, and its (length,) float32 until the next is asked for."""
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
        """See `Parameters.push`; `values` may also lie elsewhere than in an array of the host.

        Raises
        ------
        Unreachable, Refused
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
        """Send a worker's own weights, and get "w" as it was before the rule moved it towards them.

        Parameters
        ----------
        values, out
            (N,) float32, or as long as a rank's part; they may be the same memory only where nothing breaks off.
        versions
            (segments,) int64: those that this pusher's last pull or exchange left behind; overwritten.

        Returns
        -------
        Pushed
            Its staleness: exchanges of others between this one and the one before, a mean over the segments.

        Raises
        ------
        Unreachable, Refused
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
        """The shards that hold something of what this is about, and what they hold."""
        placement = self.placement
        runs = ((place, placement.run(place, self._part)) for place in placement.places)
        return [(place, run) for place, run in runs if run]

    def _codec_of(self, push: Push) -> Codec | None:
        return None if push.assign else self._codecs.push

    def _payloads(self, push: Push) -> Payloads:
        """How a push is written."""
        codec = self._codec_of(push)
        if codec is None or not codec.keeps:
            return Payloads(codec)
        if push.vector not in self._residuals:
            first, stop = self._part or (0, self.placement.size)
            self._residuals[push.vector] = np.zeros(stop - first, np.float32)
        return Payloads(codec, self._residuals[push.vector], self._origin, self._codecs.starts)

    # -- legs --------------------------------------------------------------------------------------------

    def _run(self, legs: list[L], *arrays: np.ndarray | Source | None) -> None:
        """Begin all legs, then read their answers in turn until all are done; those that go on elsewhere are added.

        `arrays` are what they are about, in the order of `Leg.lies`.
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
                    self._broke(leg, trouble)  # an answer: whoever gave it has ended his work
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
        """Have shards on this host use the arrays where they lie; gives the blocks that do."""
        lies = [self._sharing.find(array) if isinstance(array, np.ndarray) else None for array in arrays]
        blocks = {found.block for found in lies if found is not None}
        if blocks:
            self._sharing.attach(blocks, [leg.place for leg in legs])
            for leg in legs:
                leg.lies = lies
        return blocks

    def _unshare(self, legs: Sequence[L], blocks: Collection[Block]) -> list[L]:
        """Leave shards the memory that they may be at work on; gives the legs that are to go on without."""
        using = [leg for leg in legs if leg.shares]
        if using:
            for leg in using:
                leg.unshare()
            self._sharing.renew(blocks)
        return using

    def _begin(self, leg: ShardCall) -> None:
        """Give a stream all that is left to ask or send."""
        if isinstance(leg, PushCall):
            # Where segments have another place, a life may have ended there or on the way: what it had is gone with it,
            # also for a shard that has been given them since.
            moved = self._pushed_in.get(leg.push.vector) != self.placement.epoch and leg.push.sequence > 1
            leg.begin(leg.push.sequence if moved else leg.push.base)
        leg.share([self._sharing.seen(leg.place, found, self._origin) for found in leg.lies])
        leg.stream = self._streams.take(leg.place.address, leg.method)
        leg.stream.give(leg.requests())

    def _step(self, leg: ShardCall) -> None:
        """Wait for one answer and use it."""
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
        """Keep the stream for the next time."""
        assert leg.stream is not None
        self._streams.put_back(leg.place.address, leg.method, leg.stream)
        leg.stream = None

    def _drop(self, leg: ShardCall) -> None:
        """Give up the stream at hand, if there is one."""
        if leg.stream is not None:
            leg.stream.cancel()
            leg.stream = None

    def _broke(self, leg: ShardCall, trouble: Unavailable | Moved) -> None:
        """Let a leg go on in another stream.

        Raises
        ------
        Unreachable
            It has not come on for twice the deadline: a stream that stood still had its second chance.
        Moved
            Nobody can be asked where the shard is now.
        """
        stale = leg.stream is not None and leg.stream.stale and isinstance(trouble, Unavailable)
        self._drop(leg)
        if stale:  # it broke while nobody looked: no news of the shard
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
        """After a pause, go on where the segments are now; gives the legs that do."""
        time.sleep(self._pause_s(leg))
        leg.tries += 1
        self.retries += 1
        if self._refresh is not None:
            before, self.placement = self.placement, self._refresh()
            known = {leg.place.address, *(place.address for place in before.places)}
            for gone in known - {place.address for place in self.placement.places}:
                self._sharing.leave(gone)
                self._streams.leave(gone)
        if leg.stays(self.placement):  # or its death is not known yet: what is done stays with what is left, and in
            self._begin(leg)  # another epoch all of it is sent again
            return [leg]
        further = leg.go_on(self.placement)
        legs += further
        for one in further:
            self._begin(one)
        return further
