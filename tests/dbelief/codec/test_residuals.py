"""Codecs that keep what they leave out: what was sent and what is kept are together all that was given."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.codec import Codec, restore_residual
from dbelief.codec.one_bit import BLOCK, OneBit
from dbelief.codec.threshold import Threshold
from dbelief.codec.top_k import TopK
from dbelief.codec.whole_numbers import Int4, Int8
from dbelief.errors import NonFinite


def decoded(codec: Codec, payload: np.ndarray, size: int) -> np.ndarray:
    out = np.full(size, -7, np.float32)
    codec.decode(payload.data, out)
    return out


@st.composite
def cut_lengths(draw: st.DrawFn, block: int = BLOCK) -> tuple[int, list[int]]:
    """A length, and where tensors begin within it."""
    length = draw(st.integers(1, 3 * block + 5))
    cuts = draw(st.sets(st.integers(1, max(1, length - 1)), max_size=6)) if length > 1 else set()
    return length, sorted(cuts)


def blocks_of(length: int, cuts: list[int]) -> list[slice]:
    """As the format has them: from each cut on, 2,048 numbers at a time."""
    edges = [0, *cuts, length]
    return [
        slice(first, min(first + 2048, stop))
        for start, stop in itertools.pairwise(edges)
        for first in range(start, stop, 2048)
    ]


# -- one bit -------------------------------------------------------------------------------------------------


@given(cut_lengths(), st.integers(0, 2**32))
def test_one_bit_is_the_means_of_its_blocks(shape: tuple[int, list[int]], seed: int) -> None:
    length, cuts = shape
    rng = np.random.default_rng(seed)
    values, residual = (rng.normal(size=length).astype(np.float32) for _ in range(2))
    v = values + residual
    sent = decoded(OneBit(), OneBit().encode(values, residual, cuts), length)
    wanted = np.empty(length)
    for block in blocks_of(length, cuts):
        for chosen in (v[block] >= 0, v[block] < 0):
            if chosen.any():
                wanted[block][chosen] = v[block][chosen].astype(np.float64).mean()
    np.testing.assert_allclose(sent, wanted, rtol=1e-5)
    np.testing.assert_array_equal(residual, v - sent)


@given(cut_lengths(), st.integers(0, 2**32))
def test_one_bit_as_the_format_is_written(shape: tuple[int, list[int]], seed: int) -> None:
    length, cuts = shape
    v = np.random.default_rng(seed).integers(-3, 3, length).astype(np.float32)
    payload = OneBit().encode(v, np.zeros(length, np.float32), cuts).tobytes()
    blocks = blocks_of(length, cuts)
    edges = [0, *cuts, length]
    head = np.array([len(edges) - 1, *np.diff(edges)], "<u4").tobytes()
    assert payload[: len(head)] == head
    bits = b"".join(np.packbits(v[block] >= 0, bitorder="little").tobytes() for block in blocks)
    assert payload[len(head) + 8 * len(blocks) :] == bits
    means = np.frombuffer(payload, "<f4", 2 * len(blocks), len(head)).reshape(-1, 2)
    assert (means[:, 0] <= 0).all()
    assert (means[:, 1] >= 0).all()


@given(st.lists(st.floats(2.0**-100, 2.0**100, width=32), min_size=1, max_size=3), st.integers(1, BLOCK))
def test_the_mean_of_equal_numbers_is_that_number(numbers: list[float], count: int) -> None:
    values = np.repeat(np.array(numbers, np.float32), count)
    cuts = [count * k for k in range(1, len(numbers))]
    for sign in (1, -1):
        residual = np.zeros_like(values)
        sent = decoded(OneBit(), OneBit().encode(np.float32(sign) * values, residual, cuts), values.size)
        np.testing.assert_array_equal(sent, np.float32(sign) * values)
        assert not residual.any()


# -- threshold -----------------------------------------------------------------------------------------------


@given(st.integers(1, 500), st.integers(0, 2**32), st.floats(0.01, 4))
def test_threshold_sends_large_values_and_keeps_the_rest(length: int, seed: int, tau: float) -> None:
    codec, rng = Threshold(tau), np.random.default_rng(seed)
    values, residual = (rng.normal(size=length).astype(np.float32) for _ in range(2))
    r = values + residual
    payload = codec.encode(values, residual)
    t = np.float32(tau)
    (where,) = np.nonzero(np.abs(r) > t)
    words = [int(i) | (1 << 31 if r[i] < 0 else 0) for i in where]
    assert payload.tobytes() == t.tobytes() + np.array(words, "<u4").tobytes()
    wanted = np.where(np.abs(r) > t, np.copysign(t, r), np.float32(0))
    np.testing.assert_array_equal(decoded(codec, payload, length), wanted)
    np.testing.assert_array_equal(residual, r - wanted)


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 2**32), st.sampled_from([0.25, 1.0, 4.0]))
def test_threshold_telescopes_exactly_on_equal_exponents(length: int, pushes: int, seed: int, tau: float) -> None:
    rng, codec = np.random.default_rng(seed), Threshold(tau)
    residual, given_, sent = (np.zeros(length, np.float32) for _ in range(3))
    for _ in range(pushes):
        values = (rng.integers(-40, 40, length) * 0.25).astype(np.float32)
        given_ += values
        sent += decoded(codec, codec.encode(values, residual), length)
    np.testing.assert_array_equal(sent + residual, given_)


# -- all -----------------------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize(
    "codec", [OneBit(), Threshold(0.7), Int8(), Int4(), TopK(0.25)], ids=lambda codec: codec.name
)


@EACH
def test_sent_plus_residual_equals_input(codec: Codec) -> None:
    rng = np.random.default_rng(3)
    length, pushes = 2 * BLOCK + 37, 200
    residual, given_, sent = np.zeros(length, np.float32), np.zeros(length), np.zeros(length)
    for _ in range(pushes):
        values = rng.normal(size=length).astype(np.float32)
        given_ += values
        sent += decoded(codec, codec.encode(values, residual, [11, BLOCK]), length)
    # Each push rounds a sum and a difference of float32 numbers that stay below 64.
    np.testing.assert_allclose(sent + residual, given_, rtol=0, atol=pushes * 2 * 64 * 2.0**-24)
    assert np.abs(residual).max() < 64


@EACH
def test_undelivered_payload_returns_to_the_residual(codec: Codec) -> None:
    values = np.random.default_rng(4).normal(size=300).astype(np.float32)
    residual = np.zeros(300, np.float32)
    payload = codec.encode(values, residual)
    assert np.abs(residual - values).max() > 0.5  # much is on its way
    restore_residual(codec, payload.data, residual)
    np.testing.assert_allclose(residual, values, rtol=0, atol=4 * 2.0**-24)


@EACH
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 170])
def test_non_finite_values_are_refused(codec: Codec, wrong: float, at: int) -> None:
    values = np.zeros(171, np.float32)
    values[at] = wrong
    with pytest.raises(NonFinite, match="no finite"):
        codec.encode(values, np.zeros(171, np.float32))


@EACH
def test_a_residual_of_another_length_is_refused(codec: Codec) -> None:
    with pytest.raises(ValueError, match="3 numbers were kept for 4"):
        codec.encode(np.zeros(4, np.float32), np.zeros(3, np.float32))


@pytest.mark.parametrize("tau", [0.0, -1.0, 1e-50, 1e39, float("nan"), float("inf")])
def test_a_threshold_is_a_positive_float32(tau: float) -> None:
    with pytest.raises(ValueError, match="tau is"), np.errstate(over="ignore"):
        Threshold(tau)


def words(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def floats(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (OneBit(), b""),
        (OneBit(), words(0)),
        (OneBit(), words(1)),
        (OneBit(), words(11, *[1] * 10)),
        (OneBit(), words(2**32 - 1) + bytes(40)),
        (OneBit(), words(1, 9) + floats(0, 0) + bytes(2)),
        (OneBit(), words(2, 10, 0) + floats(0, 0) + bytes(2)),
        (OneBit(), words(2, 2**32 - 1, 11) + floats(0, 0, 0, 0) + bytes(2)),
        (OneBit(), words(1, 10) + floats(0, 0) + bytes(1)),
        (OneBit(), words(1, 10) + floats(0, 0) + bytes(3)),
        (OneBit(), words(1, 10) + floats(0, np.inf) + bytes(2)),
        (OneBit(), words(1, 10) + floats(np.nan, 0) + bytes(2)),
        (Int8(), words(1, 10) + floats(1) + bytes(9)),
        (Int4(), words(1, 10) + floats(1) + bytes(6)),
        (Threshold(1), b""),
        (Threshold(1), bytes(3)),
        (Threshold(1), floats(1) + bytes(3)),
        (Threshold(1), floats(0)),
        (Threshold(1), floats(-1)),
        (Threshold(1), floats(np.nan)),
        (Threshold(1), floats(np.inf)),
        (Threshold(1), floats(1) + words(10)),
        (Threshold(1), floats(1) + words(2**31 + 10)),
        (Threshold(1), floats(1) + words(3, 3)),
        (Threshold(1), floats(1) + words(3, 2)),
        (Threshold(1), floats(1) + words(*range(11))),
    ],
)
def test_malformed_payload_is_refused(codec: Codec, payload: bytes) -> None:
    guarded = np.full(12, 5, np.float32)
    with pytest.raises(ValueError, match=r"numbers|threshold|means"):
        codec.decode(memoryview(payload), guarded[1:-1])
    assert guarded[0] == guarded[-1] == 5


@EACH
@given(payload=st.binary(max_size=80), length=st.integers(1, 40))
def test_no_payload_reaches_beyond_its_numbers(codec: Codec, payload: bytes, length: int) -> None:
    guarded = np.full(length + 2, 5, np.float32)
    try:
        codec.decode(memoryview(payload), guarded[1:-1])
    except ValueError:
        pass
    else:
        assert np.isfinite(guarded).all()
    assert guarded[0] == guarded[-1] == 5


def test_ten_numbers_as_anyone_may_write_them() -> None:
    bits = words(2, 4, 6) + floats(-1, 2, -3, 4) + bytes([0b0101, 0b100001])
    np.testing.assert_array_equal(
        decoded(OneBit(), np.frombuffer(bits, np.uint8), 10), [2, -1, 2, -1, 4, -3, -3, -3, -3, 4]
    )
    large = floats(0.5) + words(1, 2**31 + 9)
    np.testing.assert_array_equal(
        decoded(Threshold(9), np.frombuffer(large, np.uint8), 10), [0, 0.5, 0, 0, 0, 0, 0, 0, 0, -0.5]
    )
