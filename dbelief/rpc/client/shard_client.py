"""Client of the shards: pull and push of the complete vector or one rank's range of it, all shards concurrently.

Cost of a pull or push of N numbers in S segments on K shards: 4N bytes in at most S messages, K where segments are
small; one copy of the array into messages on push, one out of them on pull. A codec sends fewer bytes; a codec with a
residual costs N float32 more, and, during a push, the encoded payloads. Streams are reused from call to call. Those of
all shards run concurrently; replies are read in rotation.

A stream that breaks is reopened and resumes at the first segment that was not acknowledged, at its current shard; the
shard's ledger makes the retry idempotent. Where the shard has a new incarnation, its portion of a push restarts, with
the push's sequence number as base: acknowledged pushes that were lost are returned as `PushResult.lost`. Portions that
were finished are not repeated, but their clock is reported to the new incarnation. The deadline bounds the time without
a segment, never the complete transfer.

Shards on the same host read and write arrays made by `array` in place, and messages hold only their location. A
direction that has a codec does not use shared memory, so that results do not depend on which processes share a host.
Where a stream breaks, its shard may still access the memory for some time: the block is abandoned and replaced by a
copy, and the rest of this call uses TCP.

Calls over TCP with few numbers use direct streams, where the shard offers them: gRPC costs each end of a message more
than copying some hundred kilobytes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import grpc
import numpy as np

from dbelief.arrays.push_source import PushSource
from dbelief.arrays.shared_memory import Block
from dbelief.arrays.vector_kernels import compiled
from dbelief.core.layout import Range, SegmentSpan
from dbelief.core.placement import Fetch, Placement, ShardPlacement
from dbelief.core.push import PARAMETERS, Push, Pusher, PushResult
from dbelief.errors import Moved, Unavailable
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import QUIET_S, named
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.pb.coordination_pb2 import WireFigures
from dbelief.rpc.wire.payloads import AS_THEY_ARE, Codecs, Payloads

from .direct_streams import DirectStreams
from .received_numbers import ReceivedNumbers
from .shard_call import PullCall, ShardCall
from .shared_buffers import SharedBuffers
from .socket_stream import SocketStream
from .stream_pool import StreamPool
from .upload_call import ExchangeCall, PushCall, Pushed, VectorUpload, result_of
from .watchdog import Watchdog

log = logging.getLogger(__name__)

_RETRY_S = (0.05, 0.1, 0.2, 0.3)
"""Pauses before a shard call is retried, the last for all further retries; a shard that is back may idle as long."""
DIRECT_SIZE = 1 << 19
"""Most numbers of a call that uses a direct stream: in float32, 2 MiB. The caller's thread sends them, to one shard
after another; gRPC's threads, which larger calls use, send to all at a time."""
_READ_AT_ONCE = 2
"""Segments that `each_segment` holds at a time: more is not faster."""


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
    direct
        Whether calls with few numbers go over direct streams where a shard offers them.
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
        direct: bool = True,
    ) -> None:
        self.job = job
        self.placement = placement
        self.retries = self.sent = self.received = self.shared_sent = self.shared_received = 0
        self._counting = runtime.lock()
        self._codecs, self._fetched = codecs, ReceivedNumbers() if codecs.differences else None
        self._residuals: dict[str, np.ndarray] = {}  # by vector: residual of its pushes
        self._rule = segments.Rule(name=rule[0], options=rule[1])
        self._pusher = pusher
        self._deadline_s = deadline_s
        self._refresh = refresh
        self._streams = StreamPool()
        self._watchdog = Watchdog(deadline_s)
        leads = pusher is None or not pusher.rank
        self._sharing = SharedBuffers(job, self._streams, self._watchdog, shares_memory, logs=leads)
        self._direct = DirectStreams(job, self._streams, direct, logs=leads)
        self.cover(part)
        # The last push: the placement's epoch when it began, and its calls where it was of some segments.
        self._pushed: dict[Pushed, tuple[int, list[PushCall]]] = {}

    def cover(self, part: Range | None) -> None:
        """Set the range that pulls and pushes cover: see `part`; no call is under way."""
        self._part, self._origin = part, part[0] if part is not None else 0
        self._known: tuple[Placement | None, list[tuple[ShardPlacement, Sequence[SegmentSpan]]]] = None, []

    def close(self) -> None:
        """Close all channels."""
        self._watchdog.close()
        self._sharing.close()
        self._direct.close()
        self._streams.close()

    def array(self, size: int) -> np.ndarray:
        """See `Parameters.array`."""
        return self._sharing.array(size)

    def figures(self) -> WireFigures:
        """Traffic so far, and the 1-norm of the residuals, in a pass over each; only while no push is running."""
        residual = sum(float(compiled("norm1")(kept)) for kept in self._residuals.values())
        shared = {"shared_sent": self.shared_sent, "shared_received": self.shared_received}
        return WireFigures(sent=self.sent, received=self.received, residual=residual, **shared)

    def pull(
        self, out: np.ndarray, versions: np.ndarray, *, vector: str = PARAMETERS, clock: int = 0, exact: bool = False
    ) -> float:
        """See `Parameters.pull`; `exact`: without a codec.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        """
        codec = segments.CODEC_FP32 if exact else self._codecs.asked
        how = self._pusher, self._origin, codec, None if exact or vector != PARAMETERS else self._fetched
        calls: list[ShardCall] = [
            PullCall(self.job, place, run, out, versions, vector, clock, *how) for place, run in self._runs()
        ]
        self._run(calls)
        return max((call.waited_s for call in calls if isinstance(call, PullCall)), default=0.0)

    def locate(self, at_least: int) -> None:
        """Get a placement of this epoch or a later one, where the known one is earlier.

        A shard that was replaced while it was suspended may answer pulls by the earlier placement when it resumes.

        Raises
        ------
        Unavailable
            The coordinator has not given it within `deadline_s`.
        """
        until_s = runtime.monotonic() + self._deadline_s
        while self.placement.epoch < at_least:
            self._locate()
            if self.placement.epoch < at_least:  # the answer of a coordinator that has been replaced
                if self._refresh is None or runtime.monotonic() >= until_s:
                    raise Unavailable(f"no placement of epoch {at_least}, only of {self.placement.epoch}")
                runtime.sleep(_RETRY_S[-1])

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

    def push(
        self,
        values: np.ndarray | PushSource,
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        within: frozenset[int] | None = None,
    ) -> PushResult:
        """See `Parameters.push`; `values` may also be a source, which is read as messages are made, again on retries.

        `meanwhile` is called once, while the shards apply the push: for work that needs none of these arrays.
        Cost of `fetch`: a shard's segments are in the replies to its push. Where its stream broke or segments moved,
        they are pulled after all pushes. Where the fetch fails, the push may have been acknowledged.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        ValueError
            The gradient and the array for the parameters overlap.
        """
        if fetch is not None and isinstance(values, np.ndarray) and np.may_share_memory(values, fetch.out):
            raise ValueError("the gradient and the array for the parameters overlap")
        upload = VectorUpload(values, versions, push, self._rule, self._origin, within=within)
        calls, pulls = list[ShardCall](), list[ShardCall]()
        for place, run in self._runs(within):
            call = PushCall(self.job, place, run, upload, self._payloads(push))
            calls.append(call)
            if fetch is not None:
                into = fetch.out, fetch.versions, PARAMETERS, fetch.clock, self._pusher, self._origin
                pull = PullCall(self.job, place, run, *into, self._codecs.asked, self._fetched)
                call.pull = pull if pull.is_one_request else None
                pulls.append(pull)
        try:
            self._run(calls, meanwhile)
        except BaseException:
            for one in calls:
                if isinstance(one, PushCall):
                    one.abort()
            raise
        if left := [pull for pull in pulls if pull.done < len(pull.run)]:
            # Not where they were: a shard that was replaced may still answer there, without this push.
            self._run([one for pull in left for one in pull.calls_in(self.placement)])
        return result_of(calls)

    def exchange(
        self, values: np.ndarray | PushSource, out: np.ndarray, versions: np.ndarray, push: Push
    ) -> PushResult:
        """Send a worker's own weights, and receive "w" as it was before the rule moved it towards them.

        Parameters
        ----------
        values, out
            (N,) float32, or of the length of a rank's range; they do not overlap. Until all replies have arrived, a
            shard of this host repeats a reply from `out`.
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
        ValueError
            The arrays overlap.
        """
        if isinstance(values, np.ndarray) and np.may_share_memory(values, out):
            raise ValueError("the weights that are sent and the array for the centre overlap")
        upload = VectorUpload(values, versions, push, self._rule, self._origin, self._codecs.asked)
        sent = upload, self._payloads(push), out
        calls: list[ShardCall] = [ExchangeCall(self.job, place, run, *sent) for place, run in self._runs()]
        self._run(calls)
        return result_of(calls)

    def _runs(self, within: frozenset[int] | None = None) -> list[tuple[ShardPlacement, Sequence[SegmentSpan]]]:
        """Shards that hold segments in this client's range, each with those segments; or with those of `within`."""
        if within is not None:
            return self.placement.split(within=within)
        if self._known[0] is not self.placement:
            self._known = self.placement, self.placement.split(self._part)
        return self._known[1]

    def _payloads(self, push: Push) -> Payloads:
        """Payload encoder of a push, with the residual of its vector where the codec keeps one."""
        codec = None if push.assign else self._codecs.push
        if codec is None or not codec.keeps:
            return Payloads(codec, absent=push.absent)
        if push.vector not in self._residuals:
            first, stop = self._part or (0, self.placement.size)
            self._residuals[push.vector] = np.zeros(stop - first, np.float32)
        return Payloads(codec, self._residuals[push.vector], self._origin, self._codecs.starts, push.absent)

    # -- shard calls -------------------------------------------------------------------------------------

    def _run(self, calls: list[ShardCall], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start all shard calls, then read replies in rotation until all are done.

        Calls after a migration are added, and pulls that follow a push in its stream. `meanwhile`: see `push`.
        """
        blocks = self._share([one for call in calls for one in call.together()])
        began_in = self.placement.epoch
        try:
            for call in calls:
                self._begin(call)
            meanwhile()
            # What is left unsent goes first: a round at its shard may wait for it, and others for that round.
            left = deque(sorted(calls, key=lambda call: not call.unsent))
            while left:
                call = left.popleft()
                try:
                    if call.stream is None:
                        left += self._go_on(call, calls)
                        continue
                    self._step(call)
                except Moved as trouble:
                    self._broke(call, trouble)  # a reply: the shard has finished with this call
                except Unavailable as trouble:
                    for other in self._unshare(calls, blocks):
                        if other is not call and other.stream is not None:
                            self._drop(other)
                            self._begin(other)
                    self._broke(call, trouble)
                if isinstance(call, PushCall) and call.pull is not None and call.done >= len(call.run):
                    call = call.hand_over()
                    calls.append(call)
                if call.stream is None or call.done < len(call.run):
                    left.append(call)
                else:
                    self._finished(call)
            if pushed := [call for call in calls if isinstance(call, PushCall)]:
                self._pushed[pushed[0].what] = began_in, pushed if pushed[0].what[1] is not None else []
        finally:
            for call in calls:
                self._drop(call)
            self._unshare(calls, blocks)
            with self._counting:
                for call in calls:
                    self.sent, self.received = self.sent + call.sent, self.received + call.received
                    self.shared_sent += call.shared_sent
                    self.shared_received += call.shared_received

    def _share(self, calls: Sequence[ShardCall]) -> Collection[Block]:
        """Let shards on this host access the calls' arrays in place; returns the blocks in use."""
        blocks: dict[Block, None] = {}  # once each, in their order: a set would be ordered by their addresses
        for call in calls:
            call.locations = [self._sharing.find(one) if isinstance(one, np.ndarray) else None for one in call.arrays]
            blocks.update({location.block: None for location in call.locations if location is not None})
        if blocks:
            self._sharing.attach(blocks, {call.place.address: call.place for call in calls}.values())
        return blocks.keys()

    def _unshare(self, calls: Sequence[ShardCall], blocks: Collection[Block]) -> list[ShardCall]:
        """Abandon blocks that shards may still access; returns the calls that continue without shared memory."""
        using = [call for call in calls if any(one.shares for one in call.together())]
        if using:
            for call in using:
                for one in call.together():
                    one.unshare()
            self._sharing.renew(blocks)
        return using

    def _begin(self, call: ShardCall) -> None:
        """Queue all remaining requests on a stream."""
        if isinstance(call, PushCall):
            # In a new placement epoch, a shard may have failed and lost its state, including segments that were
            # migrated to this shard since. The push's own number as base lets the shard report that loss.
            moved = self._pushed.get(call.what, (None,))[0] != self.placement.epoch and call.push.sequence > 1
            call.begin(call.push.sequence if moved else call.push.base)
        self._refer(call)
        call.route = call.method
        for pool in (self._sharing, self._direct):
            while self._is_for(pool, call) and (stream := pool.acquire(call.place, call.method)) is not None:
                call.stream, call.pool = stream, pool
                if stream.give(call.requests(), call.window):
                    return
                self._drop(call)
            self._refer(call)  # where the shard has opened no local stream, it has detached all blocks
        call.pool = None
        call.stream = self._streams.acquire(call.place.address, call.method)
        call.stream.give(call.requests(), call.window)

    def _is_for(self, pool: SharedBuffers | DirectStreams, call: ShardCall) -> bool:
        """Whether a call may go over the streams of a pool: over local ones without numbers, over direct ones with few.

        A block belongs to a connection of gRPC's, and a direct stream may have been opened in an earlier one.
        """
        if pool is self._sharing:
            return call.fits_a_packet and all(one.holds_no_numbers for one in call.together())
        return call.size <= DIRECT_SIZE and not any(one.names_memory for one in call.together())

    def _refer(self, call: ShardCall) -> None:
        """Let the shard access those of the call's arrays whose blocks it has attached."""
        wanted = [location for one in call.together() for location in one.locations]
        held = self._sharing.references(call.place, wanted, self._origin) if any(wanted) else [None] * len(wanted)
        found = iter(held)
        for one in call.together():
            one.share([next(found) for _ in one.locations])

    def _step(self, call: ShardCall) -> None:
        """Wait for one reply and process it."""
        assert call.stream is not None
        if not call.tries:
            call.waiting_since_s, call.warned = runtime.monotonic(), False
        try:
            with self._watchdog.watching(call.stream):
                answer = call.stream.answer()
        except grpc.RpcError as error:
            raise named(error, call.where) from error
        if answer is None:
            raise Unavailable(f"{call.where}: ended after {call.done} of {len(call.run)} segments")
        call.handle_reply(answer)
        call.tries = 0

    def _finished(self, call: ShardCall) -> None:
        """Return the stream to the pool."""
        if isinstance(call.stream, SocketStream):
            assert call.pool is not None, "a socket's stream has a pool"
            call.pool.put_back(call.place, call.route, call.stream)
        elif call.stream is not None:
            self._streams.put_back(call.place.address, call.route, call.stream)
        call.stream = None

    def _drop(self, call: ShardCall) -> None:
        """Cancel the call's stream, if it has one."""
        if call.stream is not None:
            call.stream.cancel()
            call.stream.end()
            call.stream = None

    def _broke(self, call: ShardCall, trouble: Unavailable | Moved) -> None:
        """Schedule the retry of a shard call in another stream.

        Raises
        ------
        Unavailable
            It has made no progress for twice the deadline, so a stalled stream has been retried once.
        Moved
            No `refresh` is available to find the shard's new location.
        """
        stale = call.stream is not None and call.stream.stale and isinstance(trouble, Unavailable)
        self._drop(call)
        if stale:  # it broke while idle: no information about the shard
            self._begin(call)
            return
        if self._refresh is None and isinstance(trouble, Moved):
            raise trouble
        still_s = runtime.monotonic() - call.waiting_since_s
        if still_s >= QUIET_S and not call.warned:
            call.warned = True
            log.warning(f"no answer for {still_s:.0f} s, retrying: {trouble}")
        if still_s + self._pause_s(call) >= 2 * self._deadline_s:
            reason = str(trouble).removeprefix(f"{call.where}: ")
            raise Unavailable(f"{call.where}: {reason}; no segment for {still_s:.3g} s") from trouble

    def _locate(self, *addresses: str) -> None:
        """Get the current placement, and leave those of these and of the earlier addresses that it lacks."""
        if self._refresh is None:
            return
        before, self.placement = self.placement, self._refresh()
        known = {*addresses, *(place.address for place in before.places)}
        for gone in known - {place.address for place in self.placement.places}:
            self._sharing.leave(gone)
            self._direct.leave(gone)
            self._streams.leave(gone)

    @staticmethod
    def _pause_s(call: ShardCall) -> float:
        return _RETRY_S[min(call.tries, len(_RETRY_S) - 1)]

    def _go_on(self, call: ShardCall, calls: list[ShardCall]) -> list[ShardCall]:
        """After a pause, resume at the segments' current shards; returns the calls that do, and those that report."""
        runtime.sleep(self._pause_s(call))
        call.tries += 1
        self.retries += 1
        self._locate(call.place.address)
        if call.is_current(self.placement):  # unchanged, or its failure is not known yet: finished segments stay in one
            begun = [call]  # call with the rest, and a new epoch resends them all
        else:
            begun = list(call.continued_at(self.placement))
            calls += begun
        # Other segments too: those who wait there hold up the round of these.
        known = [*calls, *(call for _, earlier in self._pushed.values() for call in earlier)]
        reports = [one for done in known for one in done.report(self.placement, self._pusher)] if self._pusher else []
        calls += reports
        for one in (*begun, *reports):
            self._begin(one)
        return [*begun, *reports]
