"""Writer of model.safetensors by segments: the complete vector is never in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dbelief.checkpoint.tensors import write_tensors
from dbelief.core.layout import Box, Layout, SegmentSpan
from dbelief.errors import RuntimeFailure

_FLOAT32 = np.dtype("<f4")


def write_model(
    path: Path, layout: Layout, parts: Iterable[tuple[SegmentSpan, np.ndarray]], metadata: dict[str, str]
) -> None:
    """Write canonical tensors (name, shape, float32) in the safetensors format, each under all its names.

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
    tensors = {name: (_FLOAT32, box.shape) for box in layout.boxes for name in box.names}
    came: list[SegmentSpan] = []
    with write_tensors(path, tensors, metadata) as file:
        for span, numbers in parts:
            came.append(span)
            for box, start in zip(layout.boxes, layout.starts, strict=True):
                first, last = max(span.start, start), min(span.stop, start + box.size)
                if first < last:
                    part = numbers[first - span.start : last - span.start]
                    for position, row in _rows(box, first - start, part):
                        for name in box.names:
                            file.write(name, row, position)
        _check_all_came(path, layout, came)


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
