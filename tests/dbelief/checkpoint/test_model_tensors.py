"""Tensors of every type in a model file: as safetensors' own library reads them, and as dbelief does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from dbelief.checkpoint.model_tensors import read_tensors
from dbelief.checkpoint.safetensors_io import _OF_BOXES, write_model
from dbelief.codec.bfloat16 import BFloat16
from dbelief.core.layout import Box, Kind, Layout
from dbelief.core.whole_numbers import split, type_in_parts
from dbelief.rundir.result import read_model
from tests.assembled import assembled

SHAPE = (3, 4)
VALUES: dict[str, Any] = {
    "float32": np.linspace(-2, 2, 12),
    "float16": np.linspace(-2, 2, 12),
    "bfloat16": np.linspace(-2, 2, 12),
    "int64": [0, 1, -1, 2**24, -(2**24), 1e6, 7, 8, 9, 10, 11, 12],
    "int32": [0, 1, -1, 2**24, -(2**24), 1e6, 7, 8, 9, 10, 11, 12],
    "uint64": [0, 1, 3, 2**24, 4, 1e6, 7, 8, 9, 10, 11, 12],
    "uint32": [0, 1, 3, 2**24, 4, 1e6, 7, 8, 9, 10, 11, 12],
    "int16": [0, 1, -1, 2**15 - 1, -(2**15), 6, 7, 8, 9, 10, 11, 12],
    "uint16": [0, 1, 2, 2**16 - 1, 2**15, 6, 7, 8, 9, 10, 11, 12],
    "int8": [0, 1, -1, 127, -128, 5, 6, 7, 8, 9, 10, 11],
    "uint8": [0, 1, 2, 127, 128, 255, 6, 7, 8, 9, 10, 11],
    "bool": [0, 1] * 6,
}
"""Numbers in the shards, which are float32; all types but bfloat16 and float16 hold them exactly."""


def flat_of(layout: Layout) -> np.ndarray:
    return np.concatenate([np.asarray(VALUES[box.dtype], np.float32) for box in layout.boxes])


def every_type() -> Layout:
    return Layout.of({dtype: np.empty(SHAPE) for dtype in _OF_BOXES}, dtypes={dtype: dtype for dtype in _OF_BOXES})


def write(path: Path, layout: Layout, flat: np.ndarray, nominal: int = 5) -> dict[str, Any]:
    """Write a file, and return what the library reads: type, shape and bytes by name."""
    write_model(path, layout, [(span, flat[span.start : span.stop]) for span in layout.segments(nominal)], {})
    return dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]


def bfloat16_of(numbers: np.ndarray) -> np.ndarray:
    """(n,) bits of bfloat16, by the codec of pushes."""
    return BFloat16().encode(np.ascontiguousarray(numbers, np.float32)).view(np.uint16)


def test_table_of_types_is_tested_whole() -> None:
    assert VALUES.keys() == _OF_BOXES.keys()


def test_library_reads_every_type_with_its_name_and_values(tmp_path: Path) -> None:
    layout = every_type()
    held = write(tmp_path / "model.safetensors", layout, flat_of(layout))
    for dtype, name in _OF_BOXES.items():
        values = np.asarray(VALUES[dtype], np.float32)
        wanted = bfloat16_of(values) if dtype == "bfloat16" else values.astype(dtype)
        assert (held[dtype]["dtype"], held[dtype]["shape"]) == (name, list(SHAPE))
        assert held[dtype]["data"] == wanted.tobytes(), dtype


def test_tensors_of_every_type_are_read_back(tmp_path: Path) -> None:
    layout = every_type()
    write(tmp_path / "model.safetensors", layout, flat_of(layout))
    read = read_tensors(tmp_path / "model.safetensors")
    assert read.keys() == _OF_BOXES.keys()
    for dtype, tensor in read.items():
        values = np.asarray(VALUES[dtype], np.float32)
        if dtype == "float16":
            values = values.astype(np.float16).astype(np.float32)
        if dtype == "bfloat16":
            values = (bfloat16_of(values).astype(np.uint32) << 16).view(np.float32)
        assert tensor.dtype == (dtype if "int" in dtype else np.float32), dtype
        np.testing.assert_array_equal(tensor, values.reshape(SHAPE), err_msg=dtype)


def test_model_with_kinds_and_types_continues_from_its_file(tmp_path: Path) -> None:
    """As by start_from: the vector that was written, but for what the types round."""
    tensors = {"w": np.zeros(12), "mean": np.zeros(12), "seen": np.zeros(12), "frozen": np.zeros(12)}
    kinds = {"mean": Kind.SUMMED, "seen": Kind.SUMMED, "frozen": Kind.FIXED}
    layout = Layout.of(tensors, {"w": ["tied"]}, kinds, {"seen": "int64", "frozen": "bfloat16"})
    flat, read = flat_of(layout), np.zeros(layout.size, np.float32)
    assert write(tmp_path / "model.safetensors", layout, flat).keys() == {*tensors, "tied"}
    read_model(tmp_path / "model.safetensors", layout, read, tmp_path)
    flat[36:] = (bfloat16_of(flat[36:]).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(read, flat)


def test_boxes_over_two_ranks_are_converted_in_place(tmp_path: Path) -> None:
    halves = [Box("w", (4, 6), rank, (0, 3 * rank), (4, 3 * rank + 3), dtype="bfloat16") for rank in (0, 1)]
    layout = Layout(tuple(halves))
    flat = np.linspace(-3, 3, 24, dtype=np.float32)
    held = write(tmp_path / "model.safetensors", layout, flat, nominal=7)
    assert held["w"]["data"] == bfloat16_of(assembled(layout, flat)["w"].reshape(-1)).tobytes()


def test_scalar_of_whole_numbers_is_rounded_to_the_nearest(tmp_path: Path) -> None:
    """A count of batches, whose differences were averaged over replicas."""
    layout = Layout.of({"count": np.zeros(())}, dtypes={"count": "int64"})
    for value, wanted in ((3.0, 3), (3.49, 3), (3.51, 4), (-1.6, -2)):
        held = write(tmp_path / "model.safetensors", layout, np.array([value], np.float32))["count"]
        assert (held["dtype"], held["shape"]) == ("I64", [])
        assert np.frombuffer(held["data"], "<i8").tolist() == [wanted]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "uint32"])
def test_whole_numbers_beyond_float32_are_in_the_file_and_come_back(dtype: str, tmp_path: Path) -> None:
    """In parts on the shards, which segments cut anywhere; a file that has them whole is read too."""
    limits = np.iinfo(dtype)
    values = np.array([[limits.min, limits.max, 0], [2**24 + 1, 2**31 - 1, 65_536]], dtype)
    layout = Layout.of(
        {"w": np.zeros(3), "n": split(values)}, {"n": ["also"]}, {"n": Kind.SUMMED}, {"n": type_in_parts(dtype)}
    )
    flat = np.concatenate([np.ones(3, np.float32), split(values).reshape(-1)])
    held = write(tmp_path / "model.safetensors", layout, flat)
    for name in ("n", "also"):
        assert held[name]["shape"] == [2, 3]
        np.testing.assert_array_equal(np.frombuffer(held[name]["data"], dtype), values.reshape(-1))
    read = np.zeros(layout.size, np.float32)
    read_model(tmp_path / "model.safetensors", layout, read, tmp_path)
    np.testing.assert_array_equal(read, flat)


def test_sums_and_averages_beyond_a_small_type_stay_at_its_end(tmp_path: Path) -> None:
    layout = Layout.of({"seen": np.zeros(3), "set": np.zeros(3)}, dtypes={"seen": "uint8", "set": "bool"})
    held = write(tmp_path / "model.safetensors", layout, np.array([300, -2, 7, 2, 0, 1], np.float32))
    assert (held["seen"]["data"], held["set"]["data"]) == (bytes([255, 0, 7]), bytes([1, 0, 1]))


# -- bfloat16 ------------------------------------------------------------------------------------------------

SPECIAL = np.array(
    [
        *(0x3F800000 + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)),  # about a tie after an even number
        *(0x3F810000 + low for low in (0x7FFF, 0x8000, 0x8001)),  # and after an odd one
        0x7F7F7FFF,  # the last that is finite
        0x7F7F8000,  # a tie that becomes infinite
        0x7F7FFFFF,
        0x7F800000,  # infinity
        0x7F800001,  # NaN whose upper half is that of infinity
        0x7FC00000,
        0x7FFFFFFF,  # NaN that overflows where it is rounded
        0x00000000,
        0x00000001,  # subnormal: to zero
        0x00008000,  # a tie with zero
        0x00008001,
        0x00018000,
        0x007FFFFF,  # to the smallest normal number
    ],
    np.uint32,
)


def written_as_bfloat16(folder: Path, bits: np.ndarray) -> np.ndarray:
    """(n,) bits in a file of a tensor that has these bits of float32."""
    layout = Layout.of({"w": np.zeros(bits.size)}, dtypes={"w": "bfloat16"})
    held = write(folder / "model.safetensors", layout, bits.astype(np.uint32).view(np.float32), nominal=64)
    return np.frombuffer(held["w"]["data"], "<u2")


def test_bfloat16_of_ties_nan_infinities_and_subnormals(tmp_path: Path) -> None:
    bits = np.concatenate([SPECIAL, SPECIAL | np.uint32(0x80000000)])
    found = written_as_bfloat16(tmp_path, bits)
    assert found.tolist() == bfloat16_of(bits.view(np.float32)).tolist()
    read = read_tensors(tmp_path / "model.safetensors")["w"]
    assert (np.isnan(read) == np.isnan(bits.view(np.float32))).all()
