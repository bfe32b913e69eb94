"""Packed rows by each codec: keys exactly, numbers within the bound, and int8 right on average."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.codec.packed_rows import NAMES, decode, encode
from dbelief.errors import NonFinite
from dbelief.sparse.row_hash import uniform_rows
from dbelief.sparse.table import pack, unpack

BYTES = {"fp16": (8, 2, 8), "bf16": (8, 2, 4), "int8": (12, 1, 4)}
"""Of a payload: for each row, for each number, and beside them."""


def bound(name: str, rows: np.ndarray) -> np.ndarray:
    """How far a number may be off."""
    sizes = np.abs(rows).astype(np.float64)
    if name == "int8":
        return np.broadcast_to(sizes.max(axis=1, keepdims=True) / 127 * (1 + 2.0**-12), rows.shape)
    halves: np.ndarray = sizes * 2.0**-8 if name == "bf16" else sizes * 2.0**-11 + sizes.max() * 2.0**-39
    return halves


def arrived(name: str, rows: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
    packed = pack(np.arange(len(rows)), rows)
    out = np.empty_like(packed)
    decode(name, encode(name, packed, rows.shape[1], noise).data, out)
    return unpack(out, rows.shape[1])[1]


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 2**32 - 1), st.integers(-60, 60), st.integers(0, 5))
def test_keys_are_exact_and_numbers_within_the_bound(
    name: str, count: int, width: int, seed: int, exponent: int, lead: int
) -> None:
    """Whatever address the payload has in a message, and nothing beside the rows is written."""
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.integers(-(2**63), 2**63 - 1, count))
    rows = (rng.standard_normal((count, width)) * 2.0**exponent).astype(np.float32)
    payload = encode(name, pack(keys, rows), width, uniform_rows(keys, seed, width, 0.5))
    row, number, beside = BYTES[name]
    assert payload.size == row * count + number * rows.size + beside
    out = np.full(2 * count + rows.size + 2, 3, np.float32)
    decode(name, memoryview(bytes(lead) + payload.tobytes())[lead:], out[1:-1])
    found, numbers = unpack(out[1:-1], width)
    np.testing.assert_array_equal(found, keys)
    assert (np.abs(numbers.astype(np.float64) - rows) <= bound(name, rows)).all()
    assert out[0] == out[-1] == 3


def test_int8_is_right_on_average() -> None:
    row = np.array([[1, -0.3, 0.0039, 0.0001, 0]], np.float32)
    noises = [uniform_rows(np.array([7]), seed, 5, 0.5) for seed in range(3_000)]
    sent = np.array([arrived("int8", row, noise) for noise in noises], np.float64)
    np.testing.assert_allclose(np.unique(sent[:, 0, 3]) * 127, [0, 1], err_msg="it arrives at times, and as one step")
    np.testing.assert_allclose(sent.mean(axis=0), row, atol=5 * 0.5 / 127 / 3_000**0.5)
    assert not sent[:, 0, 4].any()


def test_extreme_rows_of_int8() -> None:
    largest = np.finfo(np.float32).max
    rows = np.array([[largest, -largest], [0, 0], [2.0**-126, -(2.0**-149)], [2.0**-100, 0]], np.float32)
    sent = arrived("int8", rows, np.full((4, 2), -0.5, np.float32))
    np.testing.assert_allclose(sent[0], rows[0], rtol=0.01)
    assert not sent[1:3].any()
    assert sent[3, 0] == pytest.approx(2.0**-100, rel=0.01)
    for wrong in (np.nan, np.inf):
        with pytest.raises(NonFinite):
            arrived("int8", np.array([[1, wrong]], np.float32), np.zeros((1, 2), np.float32))


@pytest.mark.parametrize(
    ("name", "payload", "size", "why"),
    [
        ("bf16", b"", 4, "0 bytes with 0 keys are not 4 numbers"),
        ("bf16", bytes(16), 4, "16 bytes with 0 keys"),
        ("bf16", b"\1\0\0\0" + bytes(7), 4, "11 bytes with 1 keys"),
        ("bf16", b"\2\0\0\0" + bytes(20), 7, "24 bytes with 2 keys are not 7 numbers"),
        ("bf16", b"\2\0\0\0" + bytes(16), 4, "20 bytes with 2 keys are not 4 numbers"),
        ("bf16", b"\1\0\0\0" + bytes(11), 4, "3 bytes are not 2 numbers of bf16"),
        ("fp16", b"\1\0\0\0" + bytes(16), 4, "a scale of 0"),
        ("int8", b"\1\0\0\0" + bytes(13), 4, "5 bytes are not 1 scales and 2 whole numbers"),
        ("int8", b"\1\0\0\0" + bytes(8) + np.float32(-1).tobytes() + bytes(2), 4, "scales of rows that are negative"),
        ("int8", b"\1\0\0\0" + bytes(8) + np.float32(np.nan).tobytes() + bytes(2), 4, "scales of rows"),
        ("int8", b"\1\0\0\0" + bytes(8) + np.float32(2.0**122).tobytes() + bytes(2), 4, "larger than any sender's"),
    ],
)
def test_malformed_payload_is_refused(name: str, payload: bytes, size: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(name, memoryview(payload), np.empty(size, np.float32))
