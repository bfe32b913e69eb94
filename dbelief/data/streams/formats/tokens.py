"""Sequences of tokens in memory-mapped files: samples of a fixed context, whose target is the next token."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from dbelief.data.files.data_file import DataFile, objects_digest
from dbelief.data.files.errors import cause
from dbelief.data.files.locations import find_files, find_other_files
from dbelief.data.samples import SETS
from dbelief.data.streams.ranges import Ranges, unit_size
from dbelief.data.streams.stream_sets import StreamSets, cut_units, other_files
from dbelief.data.streams.unit_source import UnitArrays
from dbelief.errors import DataError
from dbelief.job import TokensData

_SUFFIX = ".npy"
UNIT, _DISTINCT = 4096, 8
"""Most samples of a unit, where the job says nothing; and fewest tokens of different values that say something."""


class Tokens:
    """Samples of several files, as `Indexed`: no sample spans two files.

    Parameters
    ----------
    files
        In order.
    spec
        The job's section.
    """

    dtype = np.dtype(np.int64)
    width: int | None = None

    def __init__(self, files: Sequence[DataFile], spec: TokensData) -> None:
        self.where = files[0].where
        self.features: tuple[int, ...] = (spec.context,)
        self._files, self._vocabulary = files, spec.vocabulary
        self._stride = spec.stride or spec.context
        self._arrays = [_mapped(file, spec) for file in files]
        counts = [max(0, (len(array) - spec.context - 1) // self._stride + 1) for array in self._arrays]
        self._firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        if not self._firsts[-1]:
            raise DataError(
                f"{self.where}: {len(self._arrays[0]):,} tokens are fewer than data.context and one more, "
                f"{spec.context + 1:,}"
            )

    def __len__(self) -> int:
        """Number of samples."""
        return int(self._firsts[-1])

    def read(self, indices: np.ndarray) -> UnitArrays:
        """See `Indexed`."""
        (context,) = self.features
        rows = self._rows(indices, slice(0, context + 1))
        return UnitArrays(np.ascontiguousarray(rows[:, :-1], np.int64), np.ascontiguousarray(rows[:, -1], np.int64))

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """See `Indexed`."""
        (context,) = self.features
        return self._rows(indices, slice(context, context + 1))[:, 0].astype(np.int64)

    def _rows(self, indices: np.ndarray, part: slice) -> np.ndarray:
        """A part of the context and the target of each sample: whole numbers, (m, tokens)."""
        file_of = np.searchsorted(self._firsts, indices, "right") - 1
        parts, order = list[np.ndarray](), list[np.ndarray]()
        for place in np.unique(file_of).tolist():
            (mine,) = np.nonzero(file_of == place)
            starts = (indices[mine] - self._firsts[place]) * self._stride
            windows = np.lib.stride_tricks.sliding_window_view(self._arrays[place], self.features[0] + 1)
            parts.append(windows[starts, part])
            self._check(parts[-1], place, starts + part.start)
            order.append(mine)
        rows = np.concatenate(parts)
        return rows if len(parts) == 1 else rows[np.argsort(np.concatenate(order))]

    def _check(self, rows: np.ndarray, place: int, starts: np.ndarray) -> None:
        if 0 <= int(rows.min()) <= int(rows.max()) < self._vocabulary:
            return
        row, at = (int(axis[0]) for axis in np.nonzero((rows < 0) | (rows >= self._vocabulary)))
        raise DataError(
            f"{self._files[place].where}: token {int(starts[row]) + at} (from 0) is {rows[row, at]}, and "
            f"data.vocabulary allows 0 to {self._vocabulary - 1}"
        )


def open_tokens(spec: TokensData, folder: Path) -> StreamSets:
    """Map the files; they are read when samples are.

    Raises
    ------
    DataError
    """
    files = find_files(spec.files, folder, _SUFFIX)
    tokens = Tokens(files, spec)
    unit = unit_size(spec.unit, UNIT, len(tokens))
    cut = cut_units(-(-len(tokens) // unit), spec, f"units of {unit} samples (data.unit)", tokens.where)
    made = {
        name: Ranges(tokens, _samples_of(part, unit, len(tokens)), unit) if part else None
        for name, part in zip(SETS, cut, strict=True)
    }
    for name, texts in other_files(spec).items():
        others = Tokens(find_other_files(texts, folder, _SUFFIX, files), spec)
        made[name] = Ranges(others, np.arange(len(others)), unit)
    return StreamSets(made, spec.vocabulary, objects=objects_digest(files))


def _samples_of(units: Sequence[int], size: int, n: int) -> np.ndarray:
    """Indices of all samples of some units, in order; only the last unit of all may be smaller."""
    return np.concatenate([np.arange(one * size, min(n, (one + 1) * size)) for one in units])


def _mapped(file: DataFile, spec: TokensData) -> np.ndarray:
    """The numbers of a file, not read yet. The mapping keeps it open."""
    with file.open_whole() as opened:
        try:
            if file.suffix == _SUFFIX:
                return _mapped_npy(opened, file)
            dtype = np.dtype(spec.dtype).newbyteorder("<")
            size = os.fstat(opened.fileno()).st_size
            if size % dtype.itemsize:
                raise DataError(f"{file}: {size} bytes are no whole number of {spec.dtype} (data.dtype)")
            array = np.memmap(opened, dtype, "r") if size else np.empty(0, dtype)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{file}: cannot be mapped: {cause(error)}") from None
    _check_width(array, file, spec)
    return array


def _mapped_npy(opened: IO[bytes], file: DataFile) -> np.ndarray:
    version = np.lib.format.read_magic(opened)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(opened)
    if len(shape) != 1 or dtype.kind not in "iu":
        raise DataError(f"{file}: is {dtype} of shape {shape}, must be whole numbers of one axis")
    return np.memmap(opened, dtype, "r", opened.tell(), shape) if shape[0] else np.empty(0, dtype)


def _check_width(array: np.ndarray, file: DataFile, spec: TokensData) -> None:
    """Refuse numbers that were written in a wider type: of every few read, all but the first are their upper parts.

    Raises
    ------
    DataError
        All these could only be 0, or as small as the vocabulary lets them be, and the first ones are of many values.
    """
    bits = 8 * array.itemsize
    for times in (8, 4, 2):
        rows = array[: len(array) // times * times][: times << 15].reshape(-1, times)
        highest = (spec.vocabulary - 1) >> bits
        if len({*rows[:, 0].tolist()}) < _DISTINCT or rows[:, 1].max() > highest or rows[:, 2:].any():
            continue
        raise DataError(
            f"{file}: of every {times} numbers, read as {spec.dtype} (data.dtype), only the first is not 0: they look "
            f"like numbers of {bits * times} bits; set data.dtype to their type, or write them as .npy, which names it"
        )
