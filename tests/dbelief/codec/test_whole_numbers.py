"""int8 and int4: against a plain formula, block by block and byte by byte."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.codec.whole_numbers import BLOCK, Int4, Int8
from tests.dbelief.codec.test_residuals import cut_lengths, floats, words

BOTH = pytest.mark.parametrize("codec", [Int8(), Int4()], ids=lambda codec: codec.name)


def decoded(codec: Int8, payload: bytes, size: int) -> np.ndarray:
    out = np.full(size, -7, np.float32)
    codec.decode(memoryview(payload), out)
    return out


def by_hand(codec: Int8, v: np.ndarray, cuts: list[int]) -> tuple[bytes, np.ndarray]:
    """Payload and what arrives of it, one number at a time."""
    most = np.float32(2 ** (codec.bits - 1) - 1)
    edges = [0, *cuts, v.size]
    scales, packed, sent = [], [], []
    for start, stop in itertools.pairwise(edges):
        for first in range(start, stop, 256):
            block = v[first : min(first + 256, stop)]
            scale = np.float32(abs(block).max() / most)
            whole = [0 if scale == 0 else int(np.rint(one / scale)) for one in block]
            scales.append(scale)
            sent += [np.float32(one) * scale for one in whole]
            if codec.bits == 8:
                packed += [one % 256 for one in whole]
            else:
                packed += [
                    low % 16 + 16 * (high % 16)
                    for low, high in itertools.zip_longest(whole[::2], whole[1::2], fillvalue=0)
                ]
    head = np.array([len(edges) - 1, *np.diff(edges)], "<u4").tobytes()
    return head + np.array(scales, "<f4").tobytes() + bytes(packed), np.array(sent, np.float32)


@BOTH
@given(shape=cut_lengths(BLOCK), seed=st.integers(0, 2**32), exponent=st.integers(-60, 60))
def test_a_payload_is_the_formulas(codec: Int8, shape: tuple[int, list[int]], seed: int, exponent: int) -> None:
    length, cuts = shape
    rng = np.random.default_rng(seed)
    values, residual = ((rng.normal(size=length) * 2.0**exponent).astype(np.float32) for _ in range(2))
    v = values + residual
    payload = codec.encode(values, residual, cuts).tobytes()
    wanted, sent = by_hand(codec, v, cuts)
    assert payload == wanted
    np.testing.assert_array_equal(decoded(codec, payload, length), sent)
    np.testing.assert_array_equal(residual, v - sent)


@BOTH
@given(seed=st.integers(0, 2**32))
def test_whole_multiples_of_a_power_of_two_arrive_exactly(codec: Int8, seed: int) -> None:
    """So that sums of such pushes are exact in any order."""
    most = 2 ** (codec.bits - 1) - 1
    values = np.random.default_rng(seed).integers(-most, most + 1, 2 * BLOCK).astype(np.float32) / 8
    values[::BLOCK] = most / 8
    residual = np.zeros_like(values)
    np.testing.assert_array_equal(decoded(codec, codec.encode(values, residual).tobytes(), values.size), values)
    assert not residual.any()


@BOTH
@pytest.mark.parametrize("size", [2.0**-149, 2.0**-130, np.finfo(np.float32).max])
def test_extreme_numbers_lose_nothing(codec: Int8, size: float) -> None:
    """What a scale cannot express is kept, and no number that arrives is infinite."""
    values = np.array([size, -size, size / 2], np.float32)
    residual = np.zeros_like(values)
    sent = decoded(codec, codec.encode(values, residual).tobytes(), 3)
    assert np.isfinite(sent).all()
    np.testing.assert_allclose(sent.astype(float) + residual, values, rtol=2.0**-23)


def test_five_numbers_as_anyone_may_write_them() -> None:
    payload = words(2, 3, 2) + floats(0.5, 2) + bytes([1, 255, 127, 128, 0])
    np.testing.assert_array_equal(decoded(Int8(), payload, 5), [0.5, -0.5, 63.5, -256, 0])
    payload = words(2, 3, 2) + floats(0.5, 2) + bytes([0xF1, 0x07, 0x98])
    np.testing.assert_array_equal(decoded(Int4(), payload, 5), [0.5, -0.5, 3.5, -16, -14])


@BOTH
@pytest.mark.parametrize("scale", [-1.0, np.nan, np.inf, 2.0**121])
def test_a_scale_that_no_sender_makes_is_refused(codec: Int8, scale: float) -> None:
    payload = words(1, 2) + floats(scale) + bytes(2 if codec.bits == 8 else 1)
    with pytest.raises(ValueError, match="scales of whole numbers"):
        decoded(codec, payload, 2)
