"""Incremental writer of safetensors files, and of a model by segments: the complete file is never in memory.

Format: 8 bytes little-endian header length, the header as JSON, then the tensors one after another without gaps. Types,
shapes and positions are known before the first number, so the header is written first and the numbers in any order.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dbelief.core.layout import Box, Layout, SegmentSpan
from dbelief.core.whole_numbers import join, whole_type
from dbelief.errors import RuntimeFailure
from dbelief.process.atomic_file import atomic_write

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""bfloat16, which NumPy does not have: its bits."""
DTYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
"""Element types of shards' vectors by their names in the format."""
_OF_MODELS: Mapping[str, np.dtype[Any]] = {
    **DTYPES,
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_OF_BOXES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "uint64": "U64",
    "int32": "I32",
    "uint32": "U32",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}

Tensor = tuple[np.dtype[Any], tuple[int, ...]]
_ALIGN = 8


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name of an element type in the format."""
    return next(name for name, known in _OF_MODELS.items() if known == dtype)


def array_of(dtype: str, shape: list[int], data: bytes | bytearray | memoryview) -> np.ndarray:
    """A tensor as safetensors reads it.

    Raises
    ------
    KeyError, ValueError
        The element type is none of those that are written here, or there are not so many numbers.
    """
    return np.frombuffer(data, _OF_MODELS[dtype]).reshape(shape)


class TensorFile:
    """A safetensors file with its header written.

    Attributes
    ----------
    size
        Size of the complete file in bytes.
    header_crc32
        CRC-32 of everything before the first tensor.
    """

    def __init__(self, file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        self._file = file
        self._starts: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        total = 0
        for name, (dtype, shape) in tensors.items():
            end = total + dtype.itemsize * math.prod(shape)
            header[name] = {"dtype": dtype_name(dtype), "shape": list(shape), "data_offsets": [total, end]}
            self._starts[name] = total
            total = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % _ALIGN)  # readers that map the file require aligned numbers
        before = len(text).to_bytes(8, "little") + text
        file.write(before)
        self._data = len(before)
        self.header_crc32 = zlib.crc32(before)
        self.size = self._data + total

    def offset(self, name: str) -> int:
        """Byte offset of a tensor in the file."""
        return self._data + self._starts[name]

    def write(self, name: str, numbers: np.ndarray, first: int = 0) -> None:
        """Write contiguous numbers of the tensor's own type, from its number `first` on."""
        self._file.seek(self.offset(name) + first * numbers.itemsize)
        self._file.write(numbers.data)


@contextmanager
def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[TensorFile]:
    """A safetensors file of tensors (type and shape by name), which are written within the `with` block.

    Raises
    ------
    WriteFailed
        The file cannot be written; an existing file of that name is unchanged.
    """
    with atomic_write(path) as file:
        yield TensorFile(file, tensors, metadata)


def write_model(
    path: Path, layout: Layout, parts: Iterable[tuple[SegmentSpan, np.ndarray]], metadata: dict[str, str]
) -> None:
    """Write canonical tensors (name, shape, type) in the safetensors format, each under all its names.

    Parameters
    ----------
    parts
        Every segment once, in any order: its span and its (length,) float32 numbers.
    metadata
        Strings for the file's header.

    Raises
    ------
    RuntimeFailure
        A segment is missing or duplicate, or the file cannot be written. The file gets its name only when it is
        complete.
    """
    tensors = {name: (_type_in_file(box), box.file_shape) for box in layout.boxes for name in box.names}
    in_parts = {box.name: np.empty(box.size, np.float32) for box in layout.boxes if whole_type(box.dtype) is not None}
    came: list[SegmentSpan] = []
    with write_tensors(path, tensors, metadata) as file:
        for span, numbers in parts:
            came.append(span)
            for box, start in zip(layout.boxes, layout.starts, strict=True):
                first, last = max(span.start, start), min(span.stop, start + box.size)
                if first >= last:
                    continue
                part = numbers[first - span.start : last - span.start]
                if box.name in in_parts:
                    in_parts[box.name][first - start : last - start] = part
                    continue
                for position, row in _rows(box, first - start, _converted(part, box.dtype)):
                    for name in box.names:
                        file.write(name, row, position)
        _check_all_came(path, layout, came)
        for box in layout.boxes:
            if box.name in in_parts:
                whole = join(in_parts[box.name].reshape(box.shape), _type_in_file(box))
                for name in box.names:
                    file.write(name, whole)


def _type_in_file(box: Box) -> np.dtype[Any]:
    return whole_type(box.dtype) or _OF_MODELS[_OF_BOXES[box.dtype]]


def _bfloat16(numbers: np.ndarray) -> np.ndarray:
    bits = numbers.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    halves = np.where(np.isnan(numbers), bits | np.uint32(0x400000), rounded) >> np.uint32(16)
    return halves.astype(np.uint16).view(BFLOAT16)


def _converted(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """float32 numbers in the type of a model file; to the nearest, ties to even."""
    if dtype == "float32":
        return numbers
    if dtype == "bfloat16":
        return _bfloat16(numbers)
    with np.errstate(over="ignore"):  # beyond float16: infinite, as torch has it
        if dtype == "float16":
            return numbers.astype(dtype)
        least, most = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        whole: np.ndarray = np.rint(numbers).clip(least, most).astype(dtype)
        return whole


def _rows(box: Box, first: int, numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Split a box's numbers from `first` on into runs contiguous in its tensor, each with its position there."""
    if box.box_shape == box.shape:
        yield first, numbers
        return
    width, done = box.box_shape[-1], 0
    while done < len(numbers):
        inside = np.unravel_index(first + done, box.box_shape)
        within = tuple(int(i) + start for i, start in zip(inside, box.start, strict=True))
        run = min(width - int(inside[-1]), len(numbers) - done)
        yield int(np.ravel_multi_index(within, box.shape)), numbers[done : done + run]
        done += run


def _check_all_came(path: Path, layout: Layout, came: list[SegmentSpan]) -> None:
    position = 0
    for span in sorted(came, key=lambda span: span.start):
        if span.start != position:
            break
        position = span.stop
    if position != layout.size or len(came) != len({span.start for span in came}):
        raise RuntimeFailure(f"{path}: not written: the numbers from {position} on did not come, or came twice")
