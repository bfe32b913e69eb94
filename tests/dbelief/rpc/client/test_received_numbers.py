"""Numbers that a client has received: which it may name to whom, and that none it has named changes."""

import dataclasses

import numpy as np
import pytest

from dbelief.codec import bfloat16_difference
from dbelief.codec.bfloat16 import BFloat16
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement
from dbelief.errors import Rejected
from dbelief.rpc.client.received_numbers import ReceivedNumbers
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire.bulk import SegmentPayload
from dbelief.rpc.wire.payloads import part_of

N = 40
RUN = [SegmentSpan(3, 0, N), SegmentSpan(4, N, N)]
PLACE = ShardPlacement(1, "host:1", 7, ((3, 2),), run_id=5)
VALUES = np.linspace(-2, 2, N, dtype=np.float32)


def halves(values: np.ndarray) -> np.ndarray:
    return BFloat16().encode(values).view(np.uint16)


def received(index: int, version: int) -> ReceivedNumbers:
    known = ReceivedNumbers()
    known.read(PLACE, part_of(index, version, VALUES, BFloat16()), None, np.empty(N, np.float32))
    return known


def difference(version: int) -> SegmentPayload:
    """Twice the values."""
    payload = bfloat16_difference.encode(halves(2 * VALUES), halves(VALUES), version)
    assert payload is not None
    return SegmentPayload(3, version + 1, 0, N, segments.CODEC_BF16_DIFFERENCE, data=payload.data)


@pytest.mark.parametrize(
    "other", [ShardPlacement(0, "host:1", 7, PLACE.runs, 5), ShardPlacement(1, "host:1", 8, PLACE.runs, 5)]
)
def test_they_are_named_to_the_incarnation_that_they_came_from(other: ShardPlacement) -> None:
    known = received(3, 12)
    named = known.of(PLACE, RUN)
    assert list(named) == [3]
    assert named[3].version == 12
    np.testing.assert_array_equal(named[3].halves, halves(VALUES))
    assert list(known.of(dataclasses.replace(PLACE, address="host:2", runs=((3, 1),)), RUN)) == [3]
    assert not known.of(other, RUN)
    assert not known.of(dataclasses.replace(PLACE, run_id=6), RUN)


def test_a_difference_follows_what_was_named() -> None:
    known = received(3, 12)
    first, out = known.of(PLACE, RUN)[3], np.empty(N, np.float32)
    for _ in range(2):  # another thread's call has named the same
        known.read(PLACE, difference(12), first, out)
        np.testing.assert_array_equal(halves(out), halves(2 * VALUES))
        np.testing.assert_array_equal(known.of(PLACE, RUN)[3].halves, halves(2 * VALUES))
        assert (first.version, known.of(PLACE, RUN)[3].version) == (12, 13)
        np.testing.assert_array_equal(first.halves, halves(VALUES))


def test_other_codecs_are_read_and_not_kept() -> None:
    known, out = ReceivedNumbers(), np.empty(N, np.float32)
    known.read(PLACE, part_of(3, 1, VALUES, None), None, out)
    np.testing.assert_array_equal(out, VALUES)
    assert not known.of(PLACE, RUN)


def test_a_difference_from_others_is_refused() -> None:
    known, out = received(3, 12), np.zeros(N, np.float32)
    with pytest.raises(Rejected, match="segment 3: a difference from version 11, and those before are version 12"):
        known.read(PLACE, difference(11), known.of(PLACE, RUN)[3], out)
    with pytest.raises(Rejected, match="segment 3: payload 9 is not one that is read here"):
        known.read(PLACE, difference(12), None, out)
    assert not out.any()
