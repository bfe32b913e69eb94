"""model.safetensors written segment by segment: whoever writes it never holds the whole vector."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dbelief.layout import Layout, Span

_ALIGN = 8


def write_model(path: Path, layout: Layout, parts: Iterable[tuple[Span, np.ndarray]], metadata: dict[str, str]) -> None:
    """Write canonical tensors (name, shape, float32) in the safetensors format.

    Parameters
    ----------
    parts
        Every segment once, in any order: its span and its (length,) float32 numbers.
    metadata
        Strings kept in the file's header.

    Notes
    -----
    Format: 8 bytes little-endian header length, the header as JSON, then the tensors one after another. The file
    appears under its name only when it is whole.
    """
    shapes = {box.name: box.shape for box in layout.boxes}
    offsets: dict[str, int] = {}
    header: dict[str, object] = {"__metadata__": metadata}
    total = 0
    for name, shape in shapes.items():
        offsets[name] = total
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [total, total + size]}
        total += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGN)
    temporary = path.with_suffix(".writing")
    try:
        _write(temporary, text, total, layout, offsets, parts)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(
    temporary: Path,
    text: bytes,
    total: int,
    layout: Layout,
    offsets: dict[str, int],
    parts: Iterable[tuple[Span, np.ndarray]],
) -> None:
    """Header and tensors, durably; `total` is the tensors' bytes, `offsets` where each begins."""
    with open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + total)
    values = np.memmap(temporary, np.float32, "r+", offset=8 + len(text), shape=(total // 4,))
    for span, numbers in parts:
        for box, start in zip(layout.boxes, layout.starts, strict=True):
            first, last = max(span.start, start), min(span.stop, start + box.size)
            if first < last:
                tensor = values[offsets[box.name] // 4 :][: math.prod(box.shape)]
                part = numbers[first - span.start : last - span.start]
                if box.box_shape == box.shape:
                    tensor[first - start : last - start] = part
                else:
                    where = np.unravel_index(np.arange(first - start, last - start), box.box_shape)
                    tensor.reshape(box.shape)[box.index][where] = part
    values.flush()
    del values
    descriptor = os.open(temporary, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
