"""16 bits between ranks: rounding against float64 and against struct's own half precision, and the bound of a sum."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.worker.comm.collectives.ways import NAMES, Way, any_numbers
from worker.comm import Communicator, run_ranks
from worker.comm.collectives.wire_format import Wire, make_format

UNITS: dict[Wire, float] = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounded(numbers: np.ndarray, wire: Wire) -> np.ndarray:
    made = make_format(np, np.float32, wire, numbers.size)
    packed, back = np.empty(numbers.size, made.dtype), np.empty_like(numbers)
    made.pack(numbers, packed)
    made.unpack(packed, back)
    added = np.zeros_like(numbers)
    made.add(packed, added)
    np.testing.assert_array_equal(added, back)
    return back


@examples(200)
@given(st.floats(-65504, 65504, width=32))
def test_float16_is_that_of_ieee(value: float) -> None:
    assert rounded(np.array([value], np.float32), "float16")[0] == struct.unpack("e", struct.pack("e", value))[0]


def test_overflow_and_special_values() -> None:
    numbers = np.array([np.nan, -np.nan, np.inf, -np.inf, 1e38, 70_000, 1e-6, -0.0], np.float32)
    numbers[1:2].view(np.uint32)[:] = 0x7FFF_FFFF  # a NaN whose bits run over when they are rounded
    half, brain = rounded(numbers, "float16"), rounded(numbers, "bfloat16")
    assert np.isnan(half[:2]).all()
    assert np.isnan(brain[:2]).all()
    assert half[2:6].tolist() == [np.inf, -np.inf, np.inf, np.inf]
    assert brain[2:4].tolist() == [np.inf, -np.inf]
    np.testing.assert_allclose(brain[4:7], numbers[4:7], rtol=2**-8)
    assert abs(half[6] - 1e-6) <= 2**-25
    assert np.signbit(half[7])
    assert np.signbit(brain[7])


@pytest.mark.parametrize("wire", UNITS)
@pytest.mark.parametrize("name", NAMES)
def test_a_sum_is_off_by_no_more_than_its_bound(name: str, wire: Wire) -> None:
    ranks, size = 7, 500
    way = Way(name, 100, wire)

    def body(comm: Communicator) -> np.ndarray:
        array = any_numbers(comm.rank, size)
        way.make(comm, size)(array)
        return array

    inputs = [any_numbers(rank, size).astype(np.float64) for rank in range(ranks)]
    exact, magnitudes = np.sum(inputs, axis=0), np.sum(np.abs(inputs), axis=0)
    off = (1 + UNITS[wire]) ** way.roundings(ranks) * (1 + 2.0**-24) ** (ranks - 1) - 1
    least = 2.0**-25 * 2 * ranks if wire == "float16" else 0.0
    errors = abs(run_ranks(ranks, body)[0] - exact)
    assert (errors <= off * magnitudes + least).all()
    assert errors.max() > 0
