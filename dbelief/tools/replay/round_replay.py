"""Replay of the logged rounds of DiLoCo, in one thread and to the last bit.

Two things follow from no seed: which pushes each segment put into which round, and with which weight; and the version
of every segment that each fetch brought. Shards log the first, replicas the second. A replica is computed by
`LocalRounds`, as in the run, up to a fetch of a version that does not exist yet; a round of a segment is applied when
all pushes of its rows were made. It is not assumed that all members of the job take part in a round.

Cost: a gradient for each mini-batch, a rule for each round and segment; the memory of `LocalRounds` for each
incarnation of a replica. A push is kept until the last segment has put it into a round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np

from dbelief.core.absent import Ranges, in_segment, pairs
from dbelief.core.layout import Kind, SegmentSpan
from dbelief.core.lease import DataLease
from dbelief.core.push import AppliedPush, Push, Pusher
from dbelief.errors import RuntimeFailure
from dbelief.optim import Rule
from dbelief.optim.round_mean import round_mean
from dbelief.optim.rules.add import ADD
from dbelief.rundir.record import FetchedVersions
from dbelief.training.local_rounds import LocalRounds, RoundExchange

from .codec_replay import CodecReplay
from .segment_replay import PushId, ReplayedSegment, push_name, take, values_of

Compute = Callable[[LocalRounds, int, int, int], tuple[int, float, frozenset[str]]]
"""Function that leaves the gradient of a mini-batch at `values` in `gradient`, by (replica, epoch, start, stop) of the
epoch's permutation, and returns what `LocalRounds.step` takes."""

_OVER: Final = object()


def replay_rounds(
    initial: np.ndarray,
    spans: Sequence[SegmentSpan],
    rule: Rule,
    applied_rows: Iterable[AppliedPush],
    fetched_rows: Iterable[FetchedVersions],
    replica: Callable[[Pusher], LocalRounds],
    compute: Compute,
    wire: CodecReplay,
) -> np.ndarray:
    """Replay the logged rounds.

    Parameters
    ----------
    initial, spans
        See `replay`.
    applied_rows
        In any order, but those of one round of a segment in the order in which it summed them.
    fetched_rows
        For each incarnation, in the order of its fetches.
    replica
        Creates an incarnation of a replica, as it is before its first lease.

    Returns
    -------
    (N,) float32
        The parameters after the last logged round: the bits of the run itself.

    Raises
    ------
    RuntimeFailure
        The logs are incomplete; names the missing push or version.
    """
    segments = [_Segment(span, initial, rule) for span in spans]
    for row in sorted(applied_rows, key=lambda row: row.round or 0):
        if not 0 <= row.segment < len(segments):
            raise RuntimeFailure(f"the log names segment {row.segment}, the job has {len(segments)}")
        segments[row.segment].own.rows.append(row)
    rows: dict[Pusher, list[FetchedVersions]] = {}
    for fetched in fetched_rows:
        rows.setdefault(fetched.pusher, []).append(fetched)
    replicas = [_Replica(replica(pusher), some, compute, wire, segments) for pusher, some in rows.items()]
    for segment in segments:
        segment.own.keep()
    while any([*(one.advance() for one in replicas), *(segment.advance() for segment in segments)]):
        pass
    for trouble in (*(one.trouble() for one in replicas), *(one.trouble() for one in segments)):
        if trouble:
            raise RuntimeFailure(trouble)
    return values_of(segment.own for segment in segments)


class _Arrived(NamedTuple):
    """A segment's part of a push: (length,) float32, 0 in its ranges that are absent."""

    gradient: np.ndarray
    absent: Ranges
    acknowledged: bool


class _Segment:
    """A segment, and what has arrived there for its rounds."""

    def __init__(self, span: SegmentSpan, initial: np.ndarray, rule: Rule) -> None:
        self.span, self._rule = span, rule if span.kind is Kind.TRAINED else ADD
        self.own = ReplayedSegment.begin(span, initial, self._rule)
        self.arrived: dict[PushId, _Arrived] = {}

    def receive(self, push: Push, values: np.ndarray, acknowledged: bool) -> None:
        """Hold a push of (N,) `values` until its round is due."""
        gradient, absent = values[self.span.start : self.span.stop], in_segment(push.absent, self.span)
        for start, stop in pairs(absent):
            gradient[start:stop] = 0
        self.arrived[push.pusher, push.sequence] = _Arrived(gradient, absent, acknowledged)

    def advance(self) -> bool:
        """Apply rounds as far as their pushes have arrived; returns whether any was applied."""
        began = self.own.version
        while (due := self._round()) and not self._missing(due):
            pushed = [self.arrived.pop((row.pusher, row.sequence)) for row in due]
            weighted = [(one.gradient, row.weight or 0, one.absent) for one, row in zip(pushed, due, strict=True)]
            for _ in due:
                self.own.rows.popleft()
            mean, absent = round_mean(self.span.length, weighted)
            self.own.step(self._rule, mean, due[0].rate, absent)
        return self.own.version > began

    def _round(self) -> list[AppliedPush]:
        """Rows of the next round."""
        return list(takewhile(lambda row: row.round == self.own.rows[0].round, self.own.rows))

    def _missing(self, due: Sequence[AppliedPush]) -> AppliedPush | None:
        return next((row for row in due if (row.pusher, row.sequence) not in self.arrived), None)

    @property
    def logged(self) -> int:
        """Version at the end of its log."""
        return self.own.version + len({row.round for row in self.own.rows})

    def trouble(self) -> str:
        """Why its log was not replayed to its end; "" where it was."""
        if missing := self._missing(self._round()):
            what = f"segment {self.span.index}: round {missing.round} has {push_name(missing)}"
            return f"{what}, and by the replicas' logs it was not made"
        if left := next((push for push, one in self.arrived.items() if one.acknowledged), None):
            name = push_name(AppliedPush(self.span.index, *left, 0.0))
            return f"segment {self.span.index}: {name} was acknowledged, and the shard's log lacks it"
        return ""


class _Replica:
    """One incarnation of a replica: its log, and its moves from fetch to fetch."""

    def __init__(
        self,
        local: LocalRounds,
        rows: Sequence[FetchedVersions],
        compute: Compute,
        wire: CodecReplay,
        segments: Sequence[_Segment],
    ) -> None:
        self._local, self._compute, self._wire, self._segments = local, compute, wire, segments
        self._pusher, self._acknowledged = rows[0].pusher, rows[0].acknowledged
        self._name = f"replica {self._pusher.replica} in incarnation {self._pusher.incarnation}"
        self._rows, self._sent_after = deque(rows), 0  # mini-batches of the lease before the last exchange
        self._fetches = deque(self._brought())
        self._moves = self._all_moves()
        self._waits = self._goes_on()

    def _brought(self) -> Iterator[dict[int, int]]:
        """Of each fetch, the version of each segment that it brought: those that were there already are not sent."""
        had: Sequence[int] = (-1,) * len(self._segments)
        for row in self._rows:
            if len(row.versions) != len(had):
                raise RuntimeFailure(f"{self._name} fetched {len(row.versions)} segments, the job has {len(had)}")
            changed = {index: version for index, version in enumerate(row.versions) if version != had[index]}
            for index, version in changed.items():
                self._segments[index].own.needed[version] += 1
            yield changed
            had = row.versions

    def advance(self) -> bool:
        """Go on as far as fetches can be made; returns whether any was made."""
        moved = False
        while self._waits and self._fetch():
            self._waits, moved = self._goes_on(), True
        return moved

    def _goes_on(self) -> bool:
        """Make the moves up to the next fetch; returns whether there is one."""
        return next(self._moves, _OVER) is not _OVER

    def _fetch(self) -> bool:
        brought = self._fetches[0]
        segments = [self._segments[index].own for index in brought]
        if not take(segments, list(brought.values()), self._local.fetched.host):
            return False
        self._wire.pulled(self._local.fetched.host, brought)
        self._fetches.popleft()
        return True

    def _all_moves(self) -> Iterator[None]:
        """Train all leases; where it yields, the next fetch has to be made."""
        local = self._local
        while self._rows:
            begun = self._rows.popleft()
            yield
            local.begin(begun.lease, begun.sequence)
            for start, stop in local.batches():
                local.step(*self._compute(local, begun.lease.epoch, start, stop))
                if not (yield from self._settle(begun.lease)):
                    return
                if local.due:
                    self._send(local.exchange())
                    if not (yield from self._settle(begun.lease)):
                        return

    def _settle(self, lease: DataLease) -> Generator[None, None, bool]:
        """Merge what travels, where it is time to; False where the log ends before that: the replica has failed."""
        if self._local.settles:
            if not self._rows:
                return False
            row = self._rows.popleft()
            if (row.lease, row.step) != (lease, self._sent_after):
                where = f"after {self._sent_after} mini-batches of samples {lease.start:,} to {lease.stop:,}"
                raise RuntimeFailure(f"{self._name}: its log lacks the fetch {where} of epoch {lease.epoch}")
            yield
            self._local.merge()
        return True

    def _send(self, exchange: RoundExchange) -> None:
        self._sent_after = exchange.steps
        sent = np.array(self._local.backend.to_host(self._local.difference), np.float32)
        for within, push in exchange.pushes:
            self._wire.pushed(sent, push.pusher, push.absent, within)
            for segment in self._segments:
                if segment.span.kind is not Kind.FIXED and (within is None or segment.span.index in within):
                    segment.receive(push, sent, push.sequence <= self._acknowledged)

    def trouble(self) -> str:
        """Which fetch of its log was not made; "" where all were."""
        if not self._waits:
            return ""
        for index, version in self._fetches[0].items():
            what = f"{self._name} fetched version {version} of segment {index}"
            if version > (logged := self._segments[index].logged):
                return f"{what}, and the shard's log ends at version {logged}"
        return ""
