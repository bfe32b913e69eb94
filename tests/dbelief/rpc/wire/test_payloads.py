"""Payloads of a push: encoded once, cut where tensors begin, and returned to the residual on failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.codec import CODECS, Codec
from dbelief.codec.bfloat16 import BFloat16
from dbelief.codec.one_bit import OneBit
from dbelief.codec.threshold import Threshold
from dbelief.codec.top_k import TopK
from dbelief.core.layout import Kind, SegmentSpan, make_segments
from dbelief.errors import Rejected
from dbelief.job import PushCodec, Wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import row_payloads
from dbelief.rpc.wire.bulk import SegmentPayload
from dbelief.rpc.wire.payloads import NUMBERS, Codecs, Payloads, numbers, part_of, read_into

LATER = pytest.mark.parametrize("codec", [OneBit(), Threshold(0.5), TopK()], ids=lambda codec: codec.name)
SPANS = make_segments([(100, 400)], 64)
"""Segments of a part that begins at number 100."""


def drawn(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(300, dtype=np.float32)


def part_at(payloads: Payloads, span: SegmentSpan, values: np.ndarray) -> bytes:
    part = payloads.part(span, 3, values[span.start - 100 : span.stop - 100])
    assert part is not None
    assert part.data is not None
    assert (part.index, part.version, part.offset, part.length) == (span.index, 3, 0, span.length)
    return bytes(part.data)


def test_every_codec_has_a_number_and_every_number_a_codec() -> None:
    assert NUMBERS.keys() == CODECS.keys()
    known = {0: "fp32", 1: "fp64", 9: "bf16-difference"} | {number: name for name, number in NUMBERS.items()}
    known |= {number: f"rows-{name}" for name, number in row_payloads.NUMBERS.items()}
    assert {number: f"CODEC_{name.upper().replace('-', '_')}" for number, name in known.items()} == {
        number: name for name, number in segments.Codec.items()
    }


@LATER
def test_a_segment_is_encoded_once(codec: Codec) -> None:
    values, residual = drawn(), drawn(1)
    payloads = Payloads(codec, residual, 100)
    first = [part_at(payloads, span, values) for span in SPANS]
    kept = residual.copy()
    assert [part_at(payloads, span, values) for span in SPANS] == first
    np.testing.assert_array_equal(residual, kept)
    assert [part_at(Payloads(codec, residual, 100), span, values) for span in SPANS] != first


@pytest.mark.parametrize("codec", [BFloat16(), OneBit()], ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", [Kind.SUMMED, Kind.FIXED])
def test_what_no_gradient_moves_travels_as_it_is(codec: Codec, kind: Kind) -> None:
    """Counters, running averages and frozen parameters beside trained ones."""
    values, residual = 70_001 * np.ones(300, np.float32), np.zeros(300, np.float32)
    payloads = Payloads(codec, residual, 100)
    other = SegmentSpan(1, SPANS[1].start, SPANS[1].length, kind)
    assert part_at(payloads, other, values) == values[: other.length].tobytes()
    assert part_at(payloads, SPANS[0], values) != values[: SPANS[0].length].tobytes()
    assert not residual[other.start - 100 : other.stop - 100].any()


@LATER
def test_returned_payloads_go_to_the_residual(codec: Codec) -> None:
    values, residual = drawn(), drawn(1)
    before = residual.astype(np.float64)
    payloads = Payloads(codec, residual, 100)
    delivered, others, unsent = SPANS[0], SPANS[1:3], SPANS[3]
    for span in [delivered, *others]:
        part_at(payloads, span, values)
    after = residual.copy()
    payloads.restore_residual(SPANS[1:])
    stays, back, new = slice(0, 64), slice(64, 192), slice(192, 300)
    np.testing.assert_array_equal(residual[stays], after[stays])
    np.testing.assert_allclose(residual[back], before[back] + values[back], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(residual[new], before[new])
    assert payloads.part(unsent, 0, values[192:256]) is None
    assert payloads.part(delivered, 0, values[stays]) is None
    payloads.restore_residual(SPANS)
    np.testing.assert_allclose(residual[back], before[back] + values[back], rtol=0, atol=1e-6)


def test_streams_that_ask_at_the_same_time_get_one_payload() -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(OneBit):
        def encode(
            self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()
        ) -> np.ndarray:
            entered.set()
            assert go.wait(60)
            return super().encode(values, residual, cuts)

    values, residual, got = drawn(), np.zeros(300, np.float32), []
    payloads = Payloads(Slow(), residual, 100)
    threads = [threading.Thread(target=lambda: got.append(part_at(payloads, SPANS[0], values))) for _ in range(2)]
    threads[0].start()
    assert entered.wait(60)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join()
    sent, first = np.empty(64, np.float32), values[:64]
    OneBit().decode(memoryview(got[0]), sent)
    assert got[0] == got[1]
    np.testing.assert_array_equal(residual[:64], first - sent)


@given(st.lists(st.integers(100, 400), max_size=12).map(sorted))
def test_tensors_cut_blocks_wherever_they_begin(starts: list[int]) -> None:
    values = drawn()
    payloads = Payloads(OneBit(), np.zeros(300, np.float32), 100, starts)
    for span in SPANS:
        data = part_at(payloads, span, values)
        pieces = np.frombuffer(data, "<u4", 1 + int(np.frombuffer(data, "<u4", 1)[0]))[1:]
        cuts = {start - span.start for start in starts if span.start < start < span.stop}
        assert np.cumsum(pieces).tolist() == [*sorted(cuts), span.length]


def test_float64_is_sent_as_it_is() -> None:
    part = part_of(1, 2, np.ones(3), BFloat16())
    assert (part.codec, bytes(part.data or b"")) == (segments.CODEC_FP64, np.ones(3).tobytes())


def test_the_codecs_of_a_job() -> None:
    codecs = Codecs.of(Wire(push=PushCodec(name="threshold", tau=0.25), pull="bf16"), (0, 9))
    assert codecs.push == Threshold(0.25)
    assert (codecs.asked, codecs.starts) == (segments.CODEC_BF16, (0, 9))
    assert Codecs.of(Wire.model_validate({"push": "top-k"})).push == TopK(1 / 32)
    assert Codecs.of(Wire.model_validate({"push": {"name": "top-k", "share": 0.5}})).push == TopK(0.5)
    assert Codecs.of(Wire()) == Codecs()
    assert Codecs().asked == segments.CODEC_FP32


def coded(**fields: Any) -> SegmentPayload:
    return SegmentPayload(
        **{"index": 4, "length": 3, "codec": segments.CODEC_BF16, "data": memoryview(bytes(6)), **fields}
    )


def test_numbers_are_read_where_they_lie_or_decoded() -> None:
    data = memoryview(b"\x80\x3f" * 3)
    np.testing.assert_array_equal(numbers(coded(data=data)), 1)
    raw = memoryview(np.ones(5, np.float32).tobytes())
    read = numbers(coded(codec=segments.CODEC_FP32, length=5, data=raw))
    assert np.shares_memory(read, np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"data": memoryview(bytes(5))}, "segment 4: 5 bytes are not 3 numbers of bf16"),
        ({"data": memoryview(bytes(8))}, "segment 4: 8 bytes are not 3 numbers of bf16"),
        ({"data": None}, "segment 4: payload 3 is not one that is read here"),
        ({"codec": 9}, "segment 4: payload 9 is not one that is read here"),
        ({"length": 262145}, "segment 4: 262145 numbers, and no segment has above 262144"),
    ],
)
def test_malformed_payload_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        numbers(coded(**fields))


@pytest.mark.parametrize("codec", [segments.CODEC_FP32, segments.CODEC_BF16])
def test_numbers_that_are_not_as_many_as_wanted_are_refused(codec: int) -> None:
    data = memoryview(bytes(12 if codec == segments.CODEC_FP32 else 6))
    with pytest.raises(Rejected, match="segment 4 of 3 numbers, not 5"):
        read_into(coded(codec=codec, data=data), np.empty(5, np.float32))
