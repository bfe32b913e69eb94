"""top-k against a reference that sorts, adds one by one and writes bit by bit."""

import functools
import itertools
import math
import operator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbelief.codec.top_k import BLOCK, TopK
from tests.dbelief.codec.test_residuals import cut_lengths, decoded, words
from tests.examples import examples

SHARES = st.sampled_from([1 / 32, 2.0**-12, 0.01, 0.3, 1.0])


def heads(*blocks: tuple[float, float, int]) -> bytes:
    """Low and high level and the count of each block."""
    made = b""
    for low, high, count in blocks:
        made += np.array([low, high], "<f4").tobytes()[2:4] + np.array([high], "<f4").tobytes()[2:4]
        made += np.array([count], "<u4").tobytes()
    return made


def packed(bits: list[int]) -> bytes:
    return np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()


def low_bits(value: int, count: int) -> list[int]:
    return [value >> i & 1 for i in range(count)]


def added(numbers: list[float]) -> float:
    """One by one; `sum` makes up for rounding since Python 3.12."""
    return functools.reduce(operator.add, numbers, 0.0)


def level(mean: float, unit: float) -> float:
    """The nearest multiple of the unit in 8 bits, ties to even."""
    if mean == 0:
        return 0.0
    step = max(unit, 2.0 ** (math.frexp(mean)[1] - 8), 2.0**-133)
    return min(round(mean / step) * step, 255 * 2.0**120)


def unit_of(numbers: np.ndarray) -> float:
    """The largest power of two that all are multiples of."""
    exponents = []
    for one in numbers.tolist():
        over, under = abs(one).as_integer_ratio()
        exponents.append((over & -over).bit_length() - under.bit_length())
    return 2.0 ** min(exponents, default=0)


def by_hand(v: np.ndarray, cuts: list[int], share: float) -> tuple[bytes, np.ndarray]:
    """Payload, and what arrives of it."""
    edges, head, behind, sent = [0, *cuts, v.size], [], b"", np.zeros(v.size, np.float32)
    for start, stop in itertools.pairwise(edges):
        for first in range(start, stop, BLOCK):
            block = v[first : min(first + BLOCK, stop)]
            most = max(1, math.floor(share * block.size))
            order = sorted(range(block.size), key=lambda i: (-abs(block[i]), i))[:most]
            places = sorted(i for i in order if block[i] != 0)
            sizes = [float(abs(block[i])) for i in places]
            middle = added(sizes) / max(1, len(sizes))
            sides = [[one for one in sizes if one < middle], [one for one in sizes if one >= middle]]
            unit = unit_of(block[places])
            levels = [level(added(side) / max(1, len(side)), unit) for side in sides]
            head.append((levels[0], levels[1], len(places)))
            if not places:
                continue
            lower = (block.size // len(places)).bit_length() - 1
            codes, lows, highs = [], [], [0] * (len(places) + (block.size - 1 >> lower))
            for j, i in enumerate(places):
                up, minus = sizes[j] >= middle, block[i] < 0
                codes += [int(up), int(minus)]
                lows += low_bits(i, lower)
                highs[(i >> lower) + j] = 1
                sent[first + i] = np.float32((-1 if minus else 1) * levels[up])
            behind += packed(codes) + packed(lows) + packed(highs)
    return words(len(edges) - 1, *np.diff(edges)) + heads(*head) + behind, sent


KINDS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "equal magnitudes": lambda rng, n: rng.choice([-1.0, 1.0], n),
    "few values": lambda rng, n: rng.integers(-3, 4, n).astype(float),
    "sparse": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.02),
    "heavy": lambda rng, n: rng.standard_cauchy(n),
    "empty blocks": lambda rng, n: rng.normal(size=n) * np.repeat(rng.integers(0, 2, n // BLOCK + 1), BLOCK)[:n],
    "wide": lambda rng, n: rng.normal(size=n) * 2.0 ** rng.integers(-140, 120, n),
}


@examples(60)
@given(cut_lengths(BLOCK), st.integers(0, 2**32), SHARES, st.sampled_from(sorted(KINDS)))
@example((3 * BLOCK + 70, [3, 40, BLOCK]), 0, 1 / 32, "normal")
@example((2 * BLOCK, []), 1, 1.0, "equal magnitudes")
@example((3 * BLOCK - 9, []), 2, 1 / 32, "empty blocks")
def test_a_payload_is_the_references(shape: tuple[int, list[int]], seed: int, share: float, kind: str) -> None:
    (length, cuts), rng = shape, np.random.default_rng(seed)
    values, residual = (KINDS[kind](rng, length).astype(np.float32) for _ in range(2))
    v, codec = values + residual, TopK(share)
    payload = codec.encode(values, residual, cuts)
    wanted, sent = by_hand(v, cuts, share)
    assert payload.tobytes() == wanted
    np.testing.assert_array_equal(decoded(codec, payload, length), sent)
    np.testing.assert_array_equal(residual, v - sent)


@given(cut_lengths(300), st.integers(0, 2**32), SHARES, st.integers(-120, 100))
def test_multiples_of_a_power_of_two_lose_nothing(
    shape: tuple[int, list[int]], seed: int, share: float, exponent: int
) -> None:
    (length, cuts), rng, codec = shape, np.random.default_rng(seed), TopK(share)
    residual, given_, sent = np.zeros(length, np.float32), np.zeros(length), np.zeros(length)
    for _ in range(12):
        values = (rng.integers(-999, 1000, length) * 2.0**exponent).astype(np.float32)
        given_ += values
        sent += decoded(codec, codec.encode(values, residual, cuts), length)
        np.testing.assert_array_equal(sent + residual, given_)


def test_all_is_sent_in_the_end() -> None:
    values = np.random.default_rng(0).integers(-99, 100, BLOCK + 9).astype(np.float32)
    residual, sent, codec = np.zeros_like(values), np.zeros_like(values), TopK()
    for push in range(500):
        sent += decoded(codec, codec.encode(np.zeros_like(values) if push else values, residual), values.size)
    np.testing.assert_array_equal(sent, values)


def test_a_full_block_takes_a_108th() -> None:
    values = np.random.default_rng(0).normal(size=64 * BLOCK).astype(np.float32)
    payload = TopK().encode(values, np.zeros_like(values))
    assert payload.nbytes == 8 + 64 * TopK().block_bytes
    assert TopK().block_bytes == 152
    assert TopK().encode(np.zeros_like(values), np.zeros_like(values)).nbytes == 8 + 64 * 8


@pytest.mark.parametrize("size", [2.0**-149, 2.0**-130, np.finfo(np.float32).max])
def test_extreme_numbers_lose_nothing(size: float) -> None:
    values = np.array([size, -size, size / 2], np.float32)
    residual = np.zeros_like(values)
    sent = decoded(TopK(1), TopK(1).encode(values, residual), 3)
    assert np.isfinite(sent).all()
    np.testing.assert_array_equal(sent.astype(float) + residual, values)


@pytest.mark.parametrize("share", [0.0, 2.0**-13, 1.01, float("nan")])
def test_a_share_is_from_one_of_a_block_to_all(share: float) -> None:
    with pytest.raises(ValueError, match=r"share is .*, must be from 2\^-12 to 1"):
        TopK(share)


@pytest.mark.parametrize("decay", [0.0, 1.01, float("nan")])
def test_a_decay_is_above_0_and_at_most_1(decay: float) -> None:
    with pytest.raises(ValueError, match="decay is .*, must be above 0 and at most 1"):
        TopK(decay=decay)


def test_what_was_kept_decays_before_each_push() -> None:
    values, kept = (np.random.default_rng(seed).normal(0, 1, 3 * BLOCK).astype(np.float32) for seed in range(2))
    decayed = kept * np.float32(0.95)
    sent = [codec.encode(values, own).tobytes() for codec, own in ((TopK(decay=0.95), kept), (TopK(), decayed))]
    assert sent[0] == sent[1]
    np.testing.assert_array_equal(kept, decayed)


TEN = words(2, 9, 1)
"""Nine numbers, of which three are sent, and one."""


def test_ten_numbers_as_anyone_may_write_them() -> None:
    """The indices 0, 3 and 8: lower bits 0, 1, 0 and upper parts 0, 1, 4, at 0, 2 and 6."""
    payload = TEN + heads((0.5, 2, 3), (3, 0, 1)) + bytes([0b101101, 0b010, 0b1000101]) + bytes([0b00, 0b1])
    np.testing.assert_array_equal(
        decoded(TopK(), np.frombuffer(payload, np.uint8), 10), [2, 0, 0, -2, 0, 0, 0, 0, -0.5, 3]
    )
    values = np.array([2, 0, 0, -2, 0, 0, 0, 0, -0.5, 3], np.float32)
    encoded = TopK(0.34).encode(values, np.zeros_like(values), [9]).tobytes()
    assert encoded == TEN + heads((0.5, 2, 3), (0, 3, 1)) + payload[28:31] + bytes([0b01, 0b1])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "0 bytes in 0 pieces"),
        (TEN, "are not 10 numbers in 2 blocks"),
        (TEN + heads((1, 1, 0), (1, 1, 0))[:-1], "are not 10 numbers in 2 blocks"),
        (TEN + heads((-1, 1, 0), (1, 1, 0)), "levels .* negative or not finite"),
        (TEN + heads((1, 1, 0), (1, math.inf, 0)), "levels .* negative or not finite"),
        (TEN + heads((math.nan, 1, 0), (1, 1, 0)), "levels .* negative or not finite"),
        (TEN + heads((1, 1, 10), (1, 1, 0)) + bytes(9), "more of a block's numbers than it has"),
        (TEN + heads((1, 1, 2**32 - 1), (1, 1, 2)) + bytes(9), "more of a block's numbers than it has"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes(4), "4 bytes are not those of the 4 largest numbers, 5"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes(6), "6 bytes are not those of the 4 largest numbers, 5"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes([0, 0, 0b11, 0, 1]), "indices that do not rise"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes([0, 0, 0b1111, 0, 1]), "indices that do not rise"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes([0, 0b010, 0b1100101, 0, 1]), "indices that do not rise"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes([0, 0, 0b111, 0, 1]), "indices that do not rise"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes([0, 0b01, 0b111, 0, 1]), "indices that do not rise"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes([0, 0b100, 0b1000101, 0, 1]), "leave the 10 numbers"),
        (TEN + heads((1, 1, 3), (1, 1, 1)) + bytes([0, 0, 0b1000101, 0, 0]), "indices that do not rise"),
    ],
)
def test_malformed_payload_is_refused(payload: bytes, reason: str) -> None:
    guarded = np.full(12, 5, np.float32)
    with pytest.raises(ValueError, match=reason):
        TopK().decode(memoryview(payload), guarded[1:-1])
    assert guarded[0] == guarded[-1] == 5


@given(st.integers(1, 2 * BLOCK), SHARES, st.integers(0, 2**32), st.data())
def test_no_changed_payload_reaches_beyond_its_numbers(
    length: int, share: float, seed: int, data: st.DataObject
) -> None:
    values = np.random.default_rng(seed).normal(size=length).astype(np.float32)
    payload = TopK(share).encode(values, np.zeros_like(values))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, payload.size - 1))] = data.draw(st.integers(0, 255))
    guarded = np.full(length + 2, 5, np.float32)
    try:
        TopK().decode(payload.data, guarded[1:-1])
    except ValueError:
        pass
    else:
        assert np.isfinite(guarded).all()
    assert guarded[0] == guarded[-1] == 5
