"""Calls at shards: their streams, retries and shared memory.

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
from collections.abc import Callable, Collection, Sequence

import grpc
import numpy as np

from dbelief.arrays.shared_memory import Block
from dbelief.core.placement import Placement
from dbelief.core.push import Pusher
from dbelief.errors import Moved, Unavailable
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import QUIET_S, named

from .direct_streams import DirectStreams
from .shard_call import PullCall, ShardCall
from .shared_buffers import SharedBuffers
from .socket_stream import SocketStream
from .stream_pool import StreamPool
from .upload_call import PushCall, Pushed
from .watchdog import Watchdog

log = logging.getLogger(__name__)

_RETRY_S = (0.05, 0.1, 0.2, 0.3)
"""Pauses before a shard call is retried, the last for all further retries; a shard that is back may idle as long."""
DIRECT_SIZE = 1 << 19
"""Most numbers of a call that uses a direct stream: in float32, 2 MiB. The caller's thread sends them, to one shard
after another; gRPC's threads, which larger calls use, send to all at a time."""


class ShardCalls:
    """Runs calls at the shards of a job, all at a time.

    Parameters
    ----------
    job
        The job's id.
    placement
        Shard of each segment; updated by `refresh`.
    pusher
        Identity for pulls and pushes; None for a reader.
    deadline_s
        Time without a segment after which a stream is reopened, like a broken one; after twice this time a call fails.
    refresh
        Called when a shard cannot be reached, or has another incarnation than the one known; returns the current
        placement, or raises where the job is over. None: the placement is fixed.
    shares_memory
        Whether arrays are allocated in memory that shards on this host may attach.
    direct
        Whether calls with few numbers go over direct streams where a shard offers them.

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
        pusher: Pusher | None,
        deadline_s: float,
        refresh: Callable[[], Placement] | None,
        shares_memory: bool,
        direct: bool,
    ) -> None:
        self.job = job
        self.placement = placement
        self.retries = self.sent = self.received = self.shared_sent = self.shared_received = 0
        self._counting = runtime.lock()
        self._pusher = pusher
        self._deadline_s = deadline_s
        self._refresh = refresh
        self._origin = 0  # of the arrays in the vector
        self._streams = StreamPool()
        self._watchdog = Watchdog(deadline_s)
        leads = pusher is None or not pusher.rank
        self._sharing = SharedBuffers(job, self._streams, self._watchdog, shares_memory, logs=leads)
        self._direct = DirectStreams(job, self._streams, direct, logs=leads)
        # The last push: the placement's epoch when it began, and its calls where it was of some segments.
        self._pushed: dict[Pushed, tuple[int, list[PushCall]]] = {}

    def close(self) -> None:
        """Close all channels."""
        self._watchdog.close()
        self._sharing.close()
        self._direct.close()
        self._streams.close()

    def array(self, size: int) -> np.ndarray:
        """See `Parameters.array`."""
        return self._sharing.array(size)

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

    def _run(self, calls: list[ShardCall], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start all shard calls, then read replies in rotation until all are done.

        Calls after a migration are added, and pulls that follow a push in its stream. `meanwhile`: see `push`.
        """
        # Few numbers take one way with rows that travel in messages: a reference to memory would keep both from it.
        shared = (call for call in calls if not (call.has_rows and self._direct.wanted and call.size <= DIRECT_SIZE))
        blocks = self._share([one for call in shared for one in call.together()])
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
                if call.pull is not None and call.done >= len(call.run):
                    call = call.hand_over()
                    calls.append(call)
                if call.stream is None or call.done < len(call.run):
                    left.append(call)
                else:
                    self._finished(call)
            # The comparison spares pulls the check of an abstract class, which takes 400 ns.
            if pushed := [call for call in calls if call.method != PullCall.method and isinstance(call, PushCall)]:
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
        using = [call for call in calls if any(one.shares for one in call.together())] if blocks else []
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
