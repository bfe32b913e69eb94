"""bf16 and fp16 bit by bit, against formulas that know nothing of how the codecs go about it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.codec import Codec
from dbelief.codec.bfloat16 import BFloat16
from dbelief.codec.float16 import Float16
from tests.dbelief.codec.test_residuals import decoded

BF16, FP16 = BFloat16(), Float16()
CODECS: dict[str, Codec] = {"bf16": BF16, "fp16": FP16}


def patterns() -> np.ndarray:
    """Every upper half of a float32, each with lower halves around what rounding turns on."""
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | lower).reshape(-1).view(np.float32)


def nearest_bf16(values: np.ndarray) -> np.ndarray:
    """The nearer one of the two float32 whose lower half is 0, in exact arithmetic; of equally near ones the even."""
    bits = values.view(np.uint32)
    below, above = bits >> 16, (bits >> 16) + 1
    with np.errstate(all="ignore"):
        low, high, exact = (
            (numbers << 16).astype(np.uint32).view(np.float32).astype(np.float64) for numbers in (below, above, bits)
        )
        exact = np.where(np.isfinite(values), values.astype(np.float64), 0)
        high = np.where(np.isinf(high), np.copysign(2.0**128, exact), high)
        down, up = np.abs(exact - low), np.abs(high - exact)
    chosen = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above).astype(np.uint16)
    chosen = np.where(np.isinf(values), below, chosen).astype(np.uint16)
    return np.where(np.isnan(values), below | 0x40, chosen).astype(np.uint16)


def test_bf16_rounds_to_nearest_even_and_keeps_inf_and_nan() -> None:
    values = patterns()
    payload = BF16.encode(values)
    np.testing.assert_array_equal(payload.view(np.uint16), nearest_bf16(values))
    back = decoded(BF16, payload, values.size)
    np.testing.assert_array_equal(back.view(np.uint32), payload.view(np.uint16).astype(np.uint32) << 16)


@pytest.mark.parametrize("sign", [1, -1])
def test_fp16_at_scale_one_has_numpys_bits(sign: int) -> None:
    values = patterns()
    # 2^14 fixes the scale at 1; what is finite and larger would have another one.
    values = np.append(values[~(np.isfinite(values) & (np.abs(values) >= 2**15))], np.float32(sign * 2**14))
    payload = FP16.encode(values)
    assert payload[:4].view(np.float32)[0] == 1
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    halves, nan = payload[4:].view(np.uint16), np.isnan(values)
    np.testing.assert_array_equal(halves[~nan], wanted[~nan].view(np.uint16))
    assert np.isnan(halves[nan].view(np.float16)).all()
    np.testing.assert_array_equal(np.signbit(halves[nan].view(np.float16)), np.signbit(values[nan]))


def test_every_half_is_decoded_as_numpy_does() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    payload = np.concatenate([np.ones(1, np.float32).view(np.uint8), halves.view(np.uint8)])
    wanted = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(decoded(FP16, payload, halves.size), wanted)


@pytest.mark.parametrize("exponent", range(-148, 128))
def test_scale_maps_the_largest_number_to_2_14_to_2_15(exponent: int) -> None:
    rng = np.random.default_rng(exponent + 200)
    values = (rng.uniform(-1, 1, 300) * 2.0**exponent).astype(np.float32)
    values[7] = 2.0**exponent
    payload = FP16.encode(values)
    scale = float(payload[:4].view(np.float32)[0])
    largest = 2.0**exponent / scale
    assert 2**14 <= largest < 2**15 or (scale == 2.0**-126 and largest < 2**14)
    wanted = (values.astype(np.float64) / scale).astype(np.float16).astype(np.float64) * scale
    np.testing.assert_array_equal(decoded(FP16, payload, 300), wanted.astype(np.float32))


def test_no_finite_number_becomes_infinite_in_fp16() -> None:
    largest = np.finfo(np.float32).max
    values = np.array([largest, -largest, np.inf, -np.inf, np.nan, 1], np.float32)
    back = decoded(FP16, FP16.encode(values), 6)
    assert np.isfinite(back[[0, 1, 5]]).all()
    np.testing.assert_allclose(back[:2], values[:2], rtol=2.0**-11)
    assert back[2] == np.inf
    assert back[3] == -np.inf
    assert np.isnan(back[4])


def test_a_payload_of_zeros_and_of_nothing_finite() -> None:
    for values in (np.zeros(5, np.float32), np.full(5, np.inf, np.float32), -np.zeros(5, np.float32)):
        back = decoded(FP16, FP16.encode(values), 5)
        np.testing.assert_array_equal(back.view(np.uint32), values.view(np.uint32))


@given(st.integers(1, 700), st.integers(0, 3), st.integers(0, 5), st.sampled_from(["bf16", "fp16"]))
def test_any_length_at_any_address(length: int, offset: int, lead: int, name: str) -> None:
    codec = CODECS[name]
    whole = np.random.default_rng(length).normal(size=length + offset).astype(np.float32)
    payload = codec.encode(whole[offset:])
    message = bytes(lead) + payload.tobytes()
    out = np.full(length + 2, 3, np.float32)
    codec.decode(memoryview(message)[lead:], out[1:-1])
    np.testing.assert_allclose(out[1:-1], whole[offset:], rtol=2.0**-8, atol=1e-6)
    assert out[0] == out[-1] == 3


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("bf16", bytes(7)),
        ("bf16", bytes(10)),
        ("fp16", bytes(8)),
        ("fp16", bytes(2)),
        ("fp16", b""),
        *(
            ("fp16", np.float32(scale).tobytes() + bytes(8))
            for scale in (0, np.nan, np.inf, -1, 3, 2.0**114, 2.0**-127, 1.5)
        ),
    ],
)
def test_malformed_payload_is_refused(name: str, payload: bytes) -> None:
    codec = CODECS[name]
    with pytest.raises(ValueError, match=r"bytes are not|scale of"):
        codec.decode(memoryview(payload), np.empty(4, np.float32))
