"""Between numbers and the payloads of messages, by the codec that each segment names."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dbelief.codec import CODECS, Codec, Decode, give_back, make_codec, warm_up
from dbelief.core.layout import MAX_SEGMENT_LENGTH, SegmentSpan
from dbelief.errors import Rejected
from dbelief.rpc import segments_pb2 as segments

from . import bulk
from .bulk import SegmentPayload

if TYPE_CHECKING:
    from dbelief.job import Wire  # a shard needs no job file

NUMBERS: Mapping[str, segments.Codec.ValueType] = {
    "fp16": segments.CODEC_FP16,
    "bf16": segments.CODEC_BF16,
    "one-bit": segments.CODEC_ONE_BIT,
    "threshold": segments.CODEC_THRESHOLD,
}
"""What messages call a codec, by its name."""
_NAMES: Mapping[int, str] = {number: name for name, number in NUMBERS.items()}
KEEPING = frozenset(NUMBERS[name] for name, made in CODECS.items() if made.keeps)
"""Those that leave out what is sent later."""
_DECODERS: Mapping[int, Decode] = {NUMBERS[name]: made.decode for name, made in CODECS.items()}
_ANSWERS: Mapping[int, Codec | None] = {
    segments.CODEC_FP32: None,
    **{NUMBERS[name]: make_codec(name, {}) for name, made in CODECS.items() if not made.keeps},
}


@dataclass(frozen=True)
class Codecs:
    """How a client writes what it pushes, and asks for what it pulls.

    Attributes
    ----------
    push, pull
        None: numbers as they are.
    starts
        Where tensors begin in the flat vector, rising.
    """

    push: Codec | None = None
    pull: Codec | None = None
    starts: Sequence[int] = ()

    @classmethod
    def of(cls, wire: Wire, starts: Sequence[int] = ()) -> Codecs:
        """Those that a job file names, compiled, so that no message waits for it."""
        made = cls(make_codec(wire.push.name, wire.push.options), make_codec(wire.pull, {}), starts)
        return made.compiled()

    @classmethod
    def numbered(cls, push: int, options: Mapping[str, float], pull: int) -> Codecs:
        """Those that a message names by number, compiled; a number that is none of theirs: as they are."""
        made = cls(make_codec(_NAMES.get(push, "fp32"), options), make_codec(_NAMES.get(pull, "fp32"), {}))
        return made.compiled()

    def compiled(self) -> Codecs:
        """Compile what they need, or load it from the cache; these."""
        warm_up(self.push)
        warm_up(self.pull)
        return self

    @property
    def asked(self) -> segments.Codec.ValueType:
        """What a request for numbers says."""
        return segments.CODEC_FP32 if self.pull is None else NUMBERS[self.pull.name]


AS_THEY_ARE = Codecs()
"""Every number as it is."""


def answering(codec: int) -> Codec | None:
    """What numbers are written with for one who asks for this codec; None: as they are.

    Raises
    ------
    Refused
        They are not: it keeps what it leaves out, and a shard keeps nothing for its readers; or there is none.
    """
    if codec not in _ANSWERS:
        raise Rejected(f"codec {codec} is not one that numbers are answered in")
    return _ANSWERS[codec]


def part_of(index: int, version: int, values: np.ndarray, codec: Codec | None) -> SegmentPayload:
    """A whole segment, (n,) contiguous, by a codec that keeps nothing; float64 always as it is."""
    if codec is None or values.dtype != np.float32:
        return bulk.part_of(index, version, values)
    return _part(index, version, values, codec.encode(values), codec)


def _part(index: int, version: int, values: np.ndarray, payload: np.ndarray, codec: Codec) -> SegmentPayload:
    return SegmentPayload(index, version, 0, len(values), NUMBERS[codec.name], data=payload.data)


def read_into(part: SegmentPayload, out: np.ndarray) -> None:
    """Write the numbers of a payload into an array as long as they are.

    Raises
    ------
    Refused
        Where the codec is unknown, or the payload does not stand for so many numbers.
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
    """The numbers of a payload, 1-D: over the message's own bytes where they are as they are, else decoded.

    Raises
    ------
    Refused
        As `read_into`; or they would be more than a segment has, which a few bytes may say.
    """
    if part.codec not in _DECODERS:
        return bulk.numbers(part)
    if part.length > MAX_SEGMENT_LENGTH:
        raise Rejected(f"segment {part.index}: {part.length} numbers, and no segment has above {MAX_SEGMENT_LENGTH}")
    out = np.empty(part.length, np.float32)
    read_into(part, out)
    return out


def form_of(part: SegmentPayload) -> SegmentPayload | None:
    """What numbers came as, where they were decoded."""
    return part if part.codec in _DECODERS else None


class Payloads:
    """What a push sends of each segment, the same however often it is sent.

    What a codec with a residual has encoded it would encode otherwise a second time: so it is kept until nobody asks
    any more, which costs as much memory as is sent. Called from the threads of several streams, of which one that broke
    may still be making its last message.

    Parameters
    ----------
    codec
        None: numbers as they are.
    residual
        Of all numbers that are pushed, where the codec has one; `origin` is where they begin in the flat vector.
    starts
        See `Codecs`.
    """

    def __init__(
        self, codec: Codec | None, residual: np.ndarray | None = None, origin: int = 0, starts: Sequence[int] = ()
    ) -> None:
        self._codec, self._residual, self._origin, self._starts = codec, residual, origin, starts
        self._kept: dict[int, np.ndarray] = {}
        self._over = False
        self._lock = threading.Lock()

    def part(self, span: SegmentSpan, version: int, values: np.ndarray) -> SegmentPayload | None:
        """A segment as it is sent; None where nothing is to be sent any more."""
        codec = self._codec
        if codec is None or not codec.keeps:
            return part_of(span.index, version, values, codec)
        with self._lock:
            if self._over:
                return None
            payload = self._kept.get(span.index)
            if payload is None:
                payload = codec.encode(values, self._left_of(span), self._cuts(span))
                self._kept[span.index] = payload
        return _part(span.index, version, values, payload, codec)

    def give_back(self, spans: Iterable[SegmentSpan]) -> None:
        """These segments were not delivered, and will not be: what they had taken is kept again."""
        with self._lock:
            self._over = True
            for span in spans:
                payload = self._kept.pop(span.index, None)
                if payload is not None and self._codec is not None:
                    give_back(self._codec, payload.data, self._left_of(span))

    def _left_of(self, span: SegmentSpan) -> np.ndarray:
        assert self._residual is not None, "a codec that keeps what it leaves out has somewhere to keep it"
        return self._residual[span.start - self._origin : span.stop - self._origin]

    def _cuts(self, span: SegmentSpan) -> list[int]:
        """Where tensors begin within a segment, but for its first number."""
        first, last = bisect_right(self._starts, span.start), bisect_left(self._starts, span.stop)
        return [
            start - span.start for start in dict.fromkeys(self._starts[first:last])
        ]  # an empty one begins with the next
