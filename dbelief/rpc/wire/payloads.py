"""Conversion between numbers and the payloads of messages, by the codec that each segment names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dbelief.codec import CODECS, Codec, Decode, bfloat16_difference, make_codec, restore_residual, warm_up
from dbelief.core.absent import Ranges, covers, in_segment, pairs
from dbelief.core.layout import MAX_SEGMENT_LENGTH, Kind, SegmentSpan
from dbelief.core.push import Push
from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.sparse.table import SparseTable

from . import bulk, row_payloads
from .bulk import SegmentPayload

if TYPE_CHECKING:
    from dbelief.job import Wire  # a shard does not import the job file's module

NUMBERS: Mapping[str, segments.Codec.ValueType] = {
    "fp16": segments.CODEC_FP16,
    "bf16": segments.CODEC_BF16,
    "int8": segments.CODEC_INT8,
    "int4": segments.CODEC_INT4,
    "one-bit": segments.CODEC_ONE_BIT,
    "threshold": segments.CODEC_THRESHOLD,
    "top-k": segments.CODEC_TOP_K,
}
"""Wire number of a codec, by its name."""
NAMES: Mapping[int, str] = {segments.CODEC_FP32: "fp32", **{number: name for name, number in NUMBERS.items()}}
"""Name of a codec, by its wire number."""
KEEPING = frozenset(NUMBERS[name] for name, made in CODECS.items() if made.keeps)
"""Wire numbers of the codecs with a residual: they defer what they leave out."""
_DECODERS: Mapping[int, Decode] = {NUMBERS[name]: made.decode for name, made in CODECS.items()}
_ANSWERS: Mapping[int, Codec | None] = {
    segments.CODEC_FP32: None,
    **{NUMBERS[name]: make_codec(name, {}) for name, made in CODECS.items() if not made.keeps},
}


@dataclass(frozen=True)
class Codecs:
    """Codecs of a client, for its pushes and its pulls.

    Attributes
    ----------
    push, pull
        None: numbers are not encoded.
    starts
        First number of each tensor in the flat vector, ascending.
    differences
        Whether pulls by bf16 may be answered with the difference from what was received before.
    tables
        By bucket, the table whose rows are pushed by a codec of its own.
    """

    push: Codec | None = None
    pull: Codec | None = None
    starts: Sequence[int] = ()
    differences: bool = False
    tables: Mapping[int, SparseTable] = field(default_factory=dict)

    @classmethod
    def of(
        cls, wire: Wire, starts: Sequence[int] = (), differences: bool = False, tables: Sequence[SparseTable] = ()
    ) -> Codecs:
        """Codecs that a job file names, compiled, so that no message waits for compilation."""
        by_bucket = {index: one for one in tables if one.push != "fp32" for index in one.indices}
        push, pull = make_codec(wire.push.name, wire.push.options), make_codec(wire.pull, {})
        row_payloads.compile_codecs(tables)
        return cls(push, pull, starts, differences, by_bucket).compiled()

    @classmethod
    def numbered(cls, push: int, options: Mapping[str, float], pull: int, differences: bool = False) -> Codecs:
        """Codecs that a message names by number, compiled; an unknown number means no codec."""
        of_push, of_pull = make_codec(NAMES.get(push, "fp32"), options), make_codec(NAMES.get(pull, "fp32"), {})
        return cls(of_push, of_pull, differences=differences).compiled()

    def compiled(self) -> Codecs:
        """Compile the codecs, or load them from the cache; returns self."""
        warm_up(self.push)
        warm_up(self.pull)
        if self.differences:
            bfloat16_difference.warm_up()
        return self

    @property
    def asked(self) -> segments.Codec.ValueType:
        """Codec number for pull requests."""
        return segments.CODEC_FP32 if self.pull is None else NUMBERS[self.pull.name]


AS_THEY_ARE = Codecs()
"""No codec in either direction."""


def answering(codec: int) -> Codec | None:
    """Codec of a reply that a reader requested; None: numbers are not encoded.

    Raises
    ------
    Rejected
        The codec keeps a residual, which a shard does not store for its readers; or it is unknown.
    """
    if codec not in _ANSWERS:
        raise Rejected(f"codec {codec} is not one that numbers are answered in")
    return _ANSWERS[codec]


def codec_of(span: SegmentSpan, codec: Codec | None) -> Codec | None:
    """Codec of a segment: counters, running averages and frozen parameters travel as they are."""
    return codec if span.kind is Kind.TRAINED else None


def part_of(index: int, version: int, values: np.ndarray, codec: Codec | None) -> SegmentPayload:
    """A complete segment, (n,) contiguous, by a codec without a residual; float64 is not encoded."""
    if codec is None or values.dtype != np.float32:
        return bulk.part_of(index, version, values)
    return _part(index, version, values, codec.encode(values), codec)


def _part(index: int, version: int, values: np.ndarray, payload: np.ndarray, codec: Codec) -> SegmentPayload:
    return SegmentPayload(index, version, 0, len(values), NUMBERS[codec.name], data=payload.data)


def read_into(part: SegmentPayload, out: np.ndarray) -> None:
    """Decode a payload into an array of its length.

    Raises
    ------
    Rejected
        The codec is unknown, or the payload has another length.
    """
    decode = _DECODERS.get(part.codec)
    if decode is None or part.data is None:
        values = bulk.numbers(part)
        if len(values) != len(out):
            raise Rejected(f"segment {part.index} of {len(values)} numbers, not {len(out)}")
        out[:] = values
        return
    if part.length != len(out):
        raise Rejected(f"segment {part.index} of {part.length} numbers, not {len(out)}")
    try:
        decode(part.data, out)
    except ValueError as error:
        raise Rejected(f"segment {part.index}: {error}") from None


def numbers(part: SegmentPayload) -> np.ndarray:
    """Numbers of a payload, 1-D: a view of the message's own bytes where they are not encoded, else decoded.

    Raises
    ------
    Rejected
        As `read_into`; or the length exceeds that of a segment, which a few bytes may claim.
    """
    if row_payloads.is_encoded(part):
        return row_payloads.decoded(part)
    if part.codec not in _DECODERS:
        return bulk.numbers(part)
    if part.length > MAX_SEGMENT_LENGTH:
        raise Rejected(f"segment {part.index}: {part.length} numbers, and no segment has above {MAX_SEGMENT_LENGTH}")
    out = np.empty(part.length, np.float32)
    read_into(part, out)
    return out


def pushed_numbers(part: SegmentPayload, push: Push, span: SegmentSpan) -> np.ndarray:
    """As `numbers`; 0 where a segment of a push has no payload, since none of its numbers took part.

    Raises
    ------
    Rejected
        As `numbers`; or it has no payload, and some took part.
    """
    if part.data is not None or not covers(in_segment(push.absent, span), span.length):
        return numbers(part)
    part.length = span.length
    return np.zeros(span.length, np.float32)


def form_of(part: SegmentPayload) -> SegmentPayload | None:
    """The encoded form of the numbers, where they were decoded, or none were sent; else None."""
    if part.shared:
        return None
    return part if part.data is None or part.codec in _DECODERS or row_payloads.is_encoded(part) else None


class Payloads:
    """Payloads of one push, segment by segment; a retry sends the same bytes.

    A codec with a residual would encode a segment differently the second time: so its payloads are kept until the push
    is over, which costs as much memory as is sent. Called from the threads of several streams; one that broke may still
    making its last message. A segment that is absent as a whole has no payload; the residual of absent numbers stays.

    Parameters
    ----------
    codec
        None: numbers are not encoded.
    residual
        Of all pushed numbers, where the codec has one; `origin` is its position in the flat vector.
    starts
        See `Codecs`.
    absent
        See `Push`.
    """

    def __init__(
        self,
        codec: Codec | None,
        residual: np.ndarray | None = None,
        origin: int = 0,
        starts: Sequence[int] = (),
        absent: Ranges = (),
    ) -> None:
        self._absent = absent
        self._codec, self._residual, self._origin, self._starts = codec, residual, origin, starts
        self._kept: dict[int, np.ndarray] = {}
        self._over = False
        self._lock = runtime.lock()

    @property
    def as_they_are(self) -> bool:
        """Whether numbers are sent without a codec."""
        return self._codec is None

    def part(self, span: SegmentSpan, version: int, values: np.ndarray) -> SegmentPayload | None:
        """Payload of a segment; None where the push is over."""
        codec, absent = codec_of(span, self._codec), in_segment(self._absent, span)
        if absent and covers(absent, span.length):
            return SegmentPayload(span.index, version, 0, span.length)
        if codec is None or not codec.keeps:
            return part_of(span.index, version, values, codec)
        with self._lock:
            if self._over:
                return None
            payload = self._kept.get(span.index)
            if payload is None:
                with self._left_of(span) as left:
                    payload = codec.encode(values, left, self._cuts(span))
                self._kept[span.index] = payload
        return _part(span.index, version, values, payload, codec)

    def restore_residual(self, spans: Iterable[SegmentSpan]) -> None:
        """Return the payloads of these segments, which were not delivered and will not be, to the residual."""
        with self._lock:
            self._over = True
            for span in spans:
                payload = self._kept.pop(span.index, None)
                if payload is not None and self._codec is not None:
                    with self._left_of(span) as left:
                        restore_residual(self._codec, payload.data, left)

    @contextmanager
    def _left_of(self, span: SegmentSpan) -> Iterator[np.ndarray]:
        """A segment's residual, to be changed within the `with` block: 0 for absent numbers, which keep theirs."""
        assert self._residual is not None, "a codec that keeps a residual needs an array for it"
        left = self._residual[span.start - self._origin : span.stop - self._origin]
        kept = [(slice(*pair), left[slice(*pair)].copy()) for pair in pairs(in_segment(self._absent, span))]
        for absent, _ in kept:
            left[absent] = 0
        yield left
        for absent, own in kept:
            left[absent] = own

    def _cuts(self, span: SegmentSpan) -> list[int]:
        """Starts of tensors within a segment, except at its first number."""
        first, last = bisect_right(self._starts, span.start), bisect_left(self._starts, span.stop)
        return [
            start - span.start for start in dict.fromkeys(self._starts[first:last])
        ]  # an empty tensor has the same start as the next one
