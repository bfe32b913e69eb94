"""Reading the tensors of a model file, whatever their types, as NumPy arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import safe_open

from dbelief.checkpoint.safetensors_io import array_of


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file by name: whole numbers as they are, others as float32.

    Raises
    ------
    OSError, SafetensorError
        It cannot be read.
    """
    tensors: dict[str, np.ndarray] = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (no mapping)
            if file.get_slice(name).get_dtype() == "BF16":  # NumPy has no such type
                tensors[name] = _read_bfloat16(path, name)
            else:
                values = file.get_tensor(name)
                tensors[name] = values if values.dtype.kind in "iu" else values.astype(np.float32, copy=False)
    return tensors


def map_tensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Metadata of a safetensors file, and all its tensors by name, read-only and mapped: what is used is read.

    Raises
    ------
    OSError, SafetensorError
        It cannot be read, or its header is damaged.
    KeyError
        A tensor has a type that NumPy lacks.
    """
    with safe_open(path, framework="numpy"), open(path, "rb") as file:  # the former checks the header
        header, data = _header(file)
    content = np.memmap(path, np.uint8, mode="r")[data:]
    tensors: dict[str, np.ndarray] = {}
    metadata: dict[str, str] = header.pop("__metadata__", {})
    for name, about in header.items():
        start, stop = about["data_offsets"]
        tensors[name] = array_of(about["dtype"], about["shape"], content[start:stop].data)
    return metadata, tensors


def _header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and the position of the first tensor."""
    length = int.from_bytes(file.read(8), "little")
    return json.loads(file.read(length)), 8 + length


def _read_bfloat16(path: Path, name: str) -> np.ndarray:
    with open(path, "rb") as file:
        header, data = _header(file)
        about = header[name]
        start, stop = about["data_offsets"]
        file.seek(data + start)
        halves = np.frombuffer(file.read(stop - start), "<u2")
    values: np.ndarray = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.reshape(about["shape"])
