"""Incremental writer of safetensors files: the complete file is never in memory.

Format: 8 bytes little-endian header length, the header as JSON, then the tensors one after another without gaps. Types,
shapes and positions are known before the first number, so the header is written first and the numbers in any order.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dbelief.process.atomic_file import atomic_write

DTYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
"""Element types by their names in the format."""

Tensor = tuple[np.dtype[Any], tuple[int, ...]]
_ALIGN = 8


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name of an element type in the format."""
    return next(name for name, known in DTYPES.items() if known == dtype)


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
