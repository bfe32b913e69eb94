"""Stream of pushes from a client: openings and segments in; acknowledgements out, and the pulls that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk, payloads
from dbelief.telemetry.metrics import Metrics

from ..controller import ShardController
from ..store.segment import Outcome
from ..store.shard import SegmentResult
from .pull import PullHandler
from .upload import WAITS, Blocks, UploadHandler, Wait, nbytes_of

ACKNOWLEDGE_EVERY = 16
"""Segments per acknowledgement: a reply to each segment costs a fifth of the push throughput."""


class PushHandler(UploadHandler):
    """Handler of one push, and of the pull that its opening may name."""

    what: ClassVar[str] = "a push"

    def __init__(
        self, controller: ShardController, metrics: Metrics, wait: Wait, blocks: Blocks, message: bytes
    ) -> None:
        super().__init__(controller, metrics, wait, blocks, message)
        self._staged: list[int] = []
        self._taken = 0  # segments
        self._acknowledged = 0  # of these, by the replies sent so far
        self._duplicates = self._staleness = self._lost = 0  # since the last reply
        self._apply_s: list[float] = []  # of the segments of one message
        self._late: list[int] = []
        self._pull: PullHandler | None = None
        if self.opening.HasField("pull"):
            if not self._count:
                raise Rejected("a pull follows a push, whose opening does not count the segments")
            self._pull = PullHandler(controller, metrics, wait, blocks, self.opening.pull)

    @property
    def complete(self) -> bool:
        """Whether all segments counted by the opening have arrived; False if the opening has no count."""
        return 0 < self._count == self._taken

    def answers(self, parts: list[bulk.SegmentPayload]) -> Iterator[bytes | None]:
        """See `UploadHandler.answers`."""
        left = self._count - self._taken if self._count else len(parts)
        if len(parts) > left:
            raise Rejected(f"a push of {self._count} segments went on with segment {parts[left].index}")
        if parts and parts[0].shared:
            total = sum([nbytes_of(part, self._shard) for part in parts])
            taken = self._controller.threads.map(self._apply, parts, total)
        else:
            taken = [self._apply(part) for part in parts]
        for part, one in zip(parts, taken, strict=True):
            self._count_in(part, one)
        self._observe()
        for acknowledgement in self._replies(self.complete):
            if acknowledgement is WAITS:
                yield WAITS
                continue
            encoded = bulk.head(acknowledgement.SerializeToString())
            if self._pull is None or not self.complete:
                yield encoded
            else:
                yield from self._joined(encoded, self._pull)

    def end(self) -> Iterator[bytes]:
        """Acknowledge all applied segments: a push whose opening has no count ends with its stream."""
        for acknowledgement in self._replies(ended=True):
            if acknowledgement is not WAITS:
                yield bulk.head(acknowledgement.SerializeToString())

    def _apply(self, part: bulk.SegmentPayload) -> SegmentResult:
        """Apply one segment."""
        values = self._numbers(part)
        began = runtime.monotonic()
        taken = self._shard.push(self._push, part.index, values, part.offset, part.version, payloads.form_of(part))
        self._apply_s.append(runtime.monotonic() - began)
        return taken

    def _count_in(self, part: bulk.SegmentPayload, taken: SegmentResult) -> None:
        """Add an applied segment to the next acknowledgement, and to the metrics."""
        shard, push = self._shard, self._push
        self._count_bytes(part)
        self._taken += 1
        self._duplicates += taken.outcome is Outcome.DUPLICATE
        self._staleness += taken.staleness
        self._lost = max(self._lost, taken.lost)
        if shard.staleness == 0 and not push.assign:
            self._staged.append(part.index)
        if taken.outcome is Outcome.DUPLICATE:
            self._metrics.duplicates_total.inc()
        rounds = shard.quorum is not None and taken.outcome is Outcome.STAGED
        if (taken.outcome is Outcome.APPLIED and not push.assign) or rounds:
            self._late.append(taken.staleness)

    def _observe(self) -> None:
        """Count in the metrics what the segments of one message took, and how stale they were."""
        self._metrics.apply_seconds.observe_all(self._apply_s)
        self._metrics.staleness.observe_all(self._late)
        self._apply_s, self._late = [], []

    def _replies(self, ended: bool) -> Iterator[wire.PushAcknowledgement | None]:
        """Acknowledgement that is due now: at the end of the push, or after `ACKNOWLEDGE_EVERY` more segments."""
        due = self._taken - self._acknowledged >= ACKNOWLEDGE_EVERY and not self._staged
        if not (ended or due):
            return
        clock = 0
        if ended and self._staged:  # with staleness bound 0, a push is done when its round is applied
            self._wait("pushes", self._shard, self._staged, self._push.clock + 1)
            clock = self._shard.open_round(self._staged)
        if self._controller.replicates:
            records = self._controller.replicate()
            if self._pull is not None and self.complete:
                self._pull.prepare()
            yield WAITS
            self._controller.wait_replicated(records=records)
        self.check_incarnation()  # an earlier incarnation's pushes must not be acknowledged under this epoch
        if ended and self._taken:
            self._record_metrics()
        yield wire.PushAcknowledgement(
            acknowledged=self._taken,
            duplicates=self._duplicates,
            staleness=self._staleness,
            lost=self._lost,
            clock=clock,
        )
        self._acknowledged, self._duplicates, self._staleness, self._lost = self._taken, 0, 0, 0

    def _joined(self, acknowledgement: bytes, pull: PullHandler) -> Iterator[bytes]:
        """An acknowledgement and the replies of a pull, the first of them in one message where it does not wait."""
        if pull.waits:  # for other replicas, which may be long
            yield acknowledgement
            yield from pull.answers()
            return
        replies = pull.answers(acknowledgement)
        try:
            first = next(replies)
        except Exception:  # the pull has failed, and the push has not, unless the incarnation has ended meanwhile
            self.check_incarnation()
            yield acknowledgement
            raise
        yield first
        yield from replies
