"""bf16 numbers of segments as a client last received them, which later answers may be the difference from.

A version stands for the same numbers within one incarnation of a shard: so numbers are only named to the incarnation
that they came from. They are never changed: a call that was promised a difference keeps those that it has named.

Cost: 2 bytes a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dbelief.codec import bfloat16_difference
from dbelief.codec.bfloat16 import BFloat16
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement
from dbelief.errors import Rejected
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire.bulk import SegmentPayload
from dbelief.rpc.wire.payloads import read_into

_Incarnation = tuple[int, int, int]


def _incarnation(place: ShardPlacement) -> _Incarnation:
    return place.shard, place.shard_epoch, place.run_id


@dataclass(frozen=True)
class Received:
    """Numbers of a segment at a version of one incarnation of a shard: (length,) uint16, patterns of bf16."""

    incarnation: _Incarnation
    version: int
    halves: np.ndarray


class ReceivedNumbers:
    """What one client has received last, by segment; safe to use from several threads."""

    def __init__(self) -> None:
        self._last: dict[int, Received] = {}

    def of(self, place: ShardPlacement, run: Iterable[SegmentSpan]) -> dict[int, Received]:
        """What was received of these segments from this incarnation of their shard, by index."""
        found = {span.index: self._last.get(span.index) for span in run}
        mine = _incarnation(place)
        return {index: last for index, last in found.items() if last is not None and last.incarnation == mine}

    def read(self, place: ShardPlacement, part: SegmentPayload, base: Received | None, out: np.ndarray) -> None:
        """Decode an answer into an array of its length, (length,) float32, and keep its numbers.

        `base`: those that the request has named.

        Raises
        ------
        Rejected
            As `read_into`; or it is the difference from other numbers, or from some where none were named.
        """
        if part.codec == segments.CODEC_BF16_DIFFERENCE and part.data is not None and base is not None:
            halves = _changed(part, part.data, base, len(out))
            BFloat16.decode(halves.data.cast("B"), out)
        else:
            read_into(part, out)
            if part.codec != segments.CODEC_BF16:
                return
            halves = np.frombuffer(part.data or b"", np.uint16).copy()
        self._last[part.index] = Received(_incarnation(place), part.version, halves)


def _changed(part: SegmentPayload, payload: memoryview, base: Received, length: int) -> np.ndarray:
    """Numbers that an answer is the difference of: (length,) uint16."""
    if part.length != length:
        raise Rejected(f"segment {part.index} of {part.length} numbers, not {length}")
    halves = np.empty(length, np.uint16)
    try:
        bfloat16_difference.decode(payload, base.halves, base.version, halves)
    except ValueError as error:
        raise Rejected(f"segment {part.index}: {error}") from None
    return halves
