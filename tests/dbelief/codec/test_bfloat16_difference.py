"""Differences of bf16 come back bit by bit, as the payload that the protocol describes; bad payloads are refused."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dbelief.codec import bfloat16_difference as difference
from dbelief.codec.bfloat16 import BFloat16
from tests.examples import examples

SIZES = st.integers(1, 600)
PATTERNS = arrays.arrays(np.uint16, SIZES)


def ordered(halves: np.ndarray) -> list[int]:
    """Whole numbers that rise with the numbers, -0 below 0."""
    return [-1 - (half & 0x7FFF) if half & 0x8000 else half for half in halves.tolist()]


def near(halves: np.ndarray, seed: int, width: int) -> np.ndarray:
    """Patterns that are `width` away at most, modulo 2^16, in blocks of which some are equal."""
    rng = np.random.default_rng(seed)
    steps = (
        rng.integers(-width, width + 1, halves.size)
        * rng.integers(0, 2, -(-halves.size // 256)).repeat(256)[: halves.size]
    )
    moved = (np.array(ordered(halves)) + steps).astype(np.int16).view(np.uint16)
    found: np.ndarray = np.where(moved & 0x8000, moved ^ 0x7FFF, moved).astype(np.uint16)
    return found


def payload_of(halves: np.ndarray, before: np.ndarray, version: int, parameters: list[int]) -> bytes:
    """By the words of protos/segments.proto, with these parameters, bit by bit."""
    blocks = b""
    for number, k in enumerate(parameters):
        own = slice(256 * number, 256 * number + 256)
        bits = ""
        for new, old in zip(ordered(halves[own]), ordered(before[own]), strict=True):
            d = (new - old + 0x8000) % 0x10000 - 0x8000
            z = 2 * d if d >= 0 else -2 * d - 1
            if k < 15:
                bits += "0" * (z >> k) + "1" + (f"{z % 2**k:0{k}b}"[::-1] if k else "")
            elif k == 15:
                bits += f"{z:016b}"[::-1]
            else:
                assert not z
        blocks += bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    return version.to_bytes(8, "little") + bytes(parameters) + blocks


def decoded(payload: bytes, before: np.ndarray, version: int) -> np.ndarray:
    out = np.full(before.size + 2, 0xABCD, np.uint16)
    difference.decode(memoryview(payload), before, version, out[1:-1])
    assert out[0] == out[-1] == 0xABCD
    return out[1:-1]


@examples(200)
@given(PATTERNS, st.integers(0, 2**32), st.integers(0, 16).map(lambda bits: 1 << bits), st.integers(0, 2**64 - 1))
@example(np.array([0x8000, 0, 0x7FFF, 0xFFFF] * 150, np.uint16), 1, 1 << 15, 0)
def test_near_numbers_come_back(before: np.ndarray, seed: int, width: int, version: int) -> None:
    halves = near(before, seed, width)
    payload = difference.encode(halves, before, version)
    if payload is None:
        return
    assert payload.size < 2 * halves.size
    np.testing.assert_array_equal(decoded(payload.tobytes(), before, version), halves)
    parameters = payload[8 : 8 + -(-halves.size // 256)].tolist()
    assert payload.tobytes() == payload_of(halves, before, version, parameters)


@pytest.mark.parametrize("width", [0, 1, 3, 20, 300, 2000, 10_000])
def test_parameters_are_the_shortest(width: int) -> None:
    before = np.random.default_rng(width).integers(0, 1 << 16, 256).astype(np.uint16)
    halves = near(before, 4, width)
    payload = difference.encode(halves, before, 0)
    assert payload is not None
    equal = [16] if np.array_equal(halves, before) else []
    shortest = min(len(payload_of(halves, before, 0, [k])) for k in equal or range(16))
    assert payload.size == shortest


@pytest.mark.parametrize(("moved", "share"), [(0.01, 0.2), (0.1, 0.41)])
def test_numbers_that_move_little_have_few_bytes(moved: float, share: float) -> None:
    rng = np.random.default_rng(3)
    before = rng.standard_normal(20_000, dtype=np.float32)
    after = before * (1 + np.float32(moved) * rng.standard_normal(20_000, dtype=np.float32))
    halves, others = (BFloat16().encode(values).view(np.uint16) for values in (after, before))
    payload = difference.encode(halves, others, 1)
    assert payload is not None
    assert payload.size < share * 2 * 20_000


@pytest.mark.parametrize("k", range(16))
def test_any_parameter_is_read(k: int) -> None:
    before = np.arange(0, 1 << 16, 211, dtype=np.uint16)
    halves = near(before, 6, 40)
    payload = payload_of(halves, before, 9, [k] * -(-before.size // 256))
    np.testing.assert_array_equal(decoded(payload, before, 9), halves)


@examples(100)
@given(PATTERNS, PATTERNS)
def test_far_numbers_are_never_longer(halves: np.ndarray, before: np.ndarray) -> None:
    n = min(halves.size, before.size)
    payload = difference.encode(halves[:n], before[:n], 1)
    if payload is not None:
        assert payload.size < 2 * n
        np.testing.assert_array_equal(decoded(payload.tobytes(), before[:n], 1), halves[:n])


@examples(300)
@given(st.binary(max_size=60), st.integers(1, 300), st.booleans())
def test_no_payload_writes_outside(body: bytes, n: int, named: bool) -> None:
    payload = (5).to_bytes(8, "little") + body if named else body
    try:
        decoded(payload, np.zeros(n, np.uint16), 5)
    except ValueError:
        return
    assert named


BEFORE = np.full(300, 0x3F80, np.uint16)
HALVES = np.array(BEFORE + np.arange(300) % 7, np.uint16)
GOOD = payload_of(HALVES, BEFORE, 3, [2, 1])


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "0 bytes are not 300 differences"),
        (GOOD[:9], "9 bytes are not 300 differences"),
        (b"\4" + GOOD[1:], "a difference from version 4, and those before are version 3"),
        (GOOD[:8] + b"\x11" + GOOD[9:], "a block by a parameter above 16"),
        (GOOD[:-1], "ends within its numbers"),
        (GOOD + b"\0", "bytes behind the last block"),
        (GOOD[:8] + b"\x10\x10", None),
        (GOOD[:8] + b"\x10\x10\0", "bytes behind the last block"),
        (GOOD[:8] + b"\x0f\x10" + bytes(511), "ends within its numbers"),
        (GOOD[:8] + b"\x0f\x10" + bytes(512), None),
        (GOOD[:8] + b"\x0e\x10" + b"\x10" + bytes(600), "a difference of more than 16 bits"),
        (GOOD[:8] + b"\x10\x00" + bytes(600), "ends within its numbers"),
        (GOOD[:8] + b"\x10\x00" + b"\xff" * 5 + b"\x1f", "bits behind the last number"),
        (GOOD[:8] + b"\x10\x00" + b"\xff" * 5 + b"\x0f", None),
    ],
)
def test_a_payload_that_is_none_is_refused(payload: bytes, why: str | None) -> None:
    if why is None:
        decoded(payload, BEFORE, 3)
        return
    with pytest.raises(ValueError, match=why):
        decoded(payload, BEFORE, 3)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="300 numbers as a difference from 299"):
        difference.decode(memoryview(GOOD), BEFORE[1:], 3, HALVES.copy())
