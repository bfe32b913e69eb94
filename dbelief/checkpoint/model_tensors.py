"""Reading the tensors of a model file, whatever their types, as NumPy arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open


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


def _read_bfloat16(path: Path, name: str) -> np.ndarray:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        about = json.loads(file.read(length))[name]
        start, stop = about["data_offsets"]
        file.seek(8 + length + start)
        halves = np.frombuffer(file.read(stop - start), "<u2")
    values: np.ndarray = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.reshape(about["shape"])
