"""Stream of exchanges from a client: openings and segments in, previous values of the centre out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from dbelief.core.push import EXCHANGE_COMBINED
from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk, payloads
from dbelief.telemetry.metrics import Metrics

from ..controller import ShardController
from ..store.exchange_cache import Answer
from .upload import WAITS, Blocks, UploadHandler, Wait

Numbers = list[tuple[int, np.ndarray]]
"""Segments by index, and a worker's own weights for each."""


class ExchangeHandler(UploadHandler):
    """Handler of one exchange."""

    what: ClassVar[str] = "an exchange"

    def __init__(
        self, controller: ShardController, metrics: Metrics, wait: Wait, blocks: Blocks, message: bytes
    ) -> None:
        super().__init__(controller, metrics, wait, blocks, message)
        asked, own = self.opening.rule.name, self._shard.rule.name
        if asked != own:
            raise Rejected(f"an exchange by the rule {asked!r}, and the job's is {own!r}")
        if self.opening.HasField("pull"):
            raise Rejected("an exchange is answered with the centre, and its opening names a pull")
        if self._push.absent:
            raise Rejected("an exchange moves all weights, and its opening says that some took no part")
        self._based = self.opening.HasField("base")
        self._codec = payloads.answering(self.opening.answers)
        self._target = blocks().area(self.opening.shared_answers) if self.opening.HasField("shared_answers") else None
        self._taken = 0
        self._sent = self._put = 0  # bytes, of messages and in shared memory

    @property
    def complete(self) -> bool:
        """Whether all segments counted by the opening have arrived."""
        return self._taken == self._count

    def answers(self, parts: list[bulk.SegmentPayload]) -> Iterator[bytes | None]:
        """See `UploadHandler.answers`: the lost count if a base was sent, then the previous centre in one message."""
        if not parts:
            raise Rejected("an exchange begins with its opening and some segments")
        if self._taken + len(parts) > self._count:
            raise Rejected(f"an exchange of {self._count} segments went on with segment {parts[0].index}")
        numbers = [(part.index, self._numbers(part)) for part in parts]
        messages = list(_messages(numbers))
        if len(messages) > EXCHANGE_COMBINED:
            raise Rejected(f"segments {parts[0].index} to {parts[-1].index} in one message, whose answer is to be kept")
        if self._shard.staleness == 0:  # synchronous: the centre as the previous round left it
            indices = [part.index for part in parts]
            # A restored shard has lost rounds, which are not sent again: this call is the first that it gets.
            self._shard.record_clock(indices, self._push.pusher.replica, self._push.clock)
            self._wait("pushes", self._shard, indices, self._push.clock)
        taken = self._controller.threads.map(self._exchange, messages, sum(array.nbytes for _, array in numbers))
        answers = [answer for some, _, _ in taken for answer in some]
        self._metrics.duplicates_total.inc(sum(duplicates for _, duplicates, _ in taken))
        if self._controller.replicates:
            records = self._controller.replicate()
            yield WAITS
            self._controller.wait_replicated(records=records)
        self.check_incarnation()  # an earlier incarnation's answer must not be sent under this epoch
        if self._based:
            yield wire.ExchangeReply(lost=max(lost for _, _, lost in taken)).SerializeToString()
            self._based = False
        for part in parts:
            self._count_bytes(part)
        answer = self._answer([part.index for part in parts], answers)
        self._taken += len(parts)
        if self.complete:
            self._record_metrics()
            self._metrics.bytes_total.labels("sent").inc(self._sent)
            self._metrics.shared_bytes_total.labels("sent").inc(self._put)
        yield answer

    def _exchange(self, numbers: Numbers) -> tuple[list[Answer], int, int]:
        """See `Shard.exchange`; with memory of the client for the answers, they are written there and nowhere else."""
        began_s = runtime.monotonic()
        into = () if self._target is None else (self._target.of,)
        taken = self._shard.exchange(self._push, numbers, *into)
        self._metrics.apply_seconds.observe(runtime.monotonic() - began_s)
        return taken

    def _numbers(self, part: bulk.SegmentPayload) -> np.ndarray:
        """See `UploadHandler._numbers`; here a worker's own weights.

        Raises
        ------
        Rejected
            They use a codec that defers values to later pushes: for weights there is no later push.
        """
        if part.codec in payloads.KEEPING:
            raise Rejected(
                f"segment {part.index}: an exchange by codec {part.codec}, which sends a part of the numbers"
            )
        return super()._numbers(part)

    def _answer(self, indices: Sequence[int], answers: Sequence[Answer]) -> bytes:
        """Reply with previous values of segments: in the message, or where they were written in shared memory."""
        if self._target is not None:
            self._put += sum(before.nbytes for _, before in answers)
            return bulk.in_shared(indices, [version for version, _ in answers])
        pieces: list[bytes | memoryview] = []
        for index, (version, before) in zip(indices, answers, strict=True):
            answer = payloads.part_of(index, version, before, self._codec)
            assert answer.data is not None, "an answer has a payload"
            self._sent += answer.data.nbytes
            pieces += bulk.pieces(answer)
        return b"".join(pieces)


def _messages(numbers: Numbers) -> Iterator[Numbers]:
    """Split what a client has combined into messages of up to `bulk.FULL_BYTES`, whose replies are cached each."""
    some: Numbers = []
    filled = 0
    for index, weights in numbers:
        if some and filled + weights.nbytes > bulk.FULL_BYTES:
            yield some
            some, filled = [], 0
        some.append((index, weights))
        filled += weights.nbytes
    yield some
