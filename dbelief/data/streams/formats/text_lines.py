"""Lines of text with a class in front: the unit of reading is a number of lines of a file."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.data.files.contents import read
from dbelief.data.files.data_file import DataFile, objects_digest
from dbelief.data.files.locations import find_files, find_other_files
from dbelief.data.files.scan_cache import scanned
from dbelief.data.samples import SETS
from dbelief.data.streams.ranges import unit_size
from dbelief.data.streams.stream_sets import StreamSets, cut_units, other_files
from dbelief.data.streams.unit_source import UnitArrays, UnitSource
from dbelief.errors import DataError
from dbelief.job import LinesData

_SUFFIX = ".txt"
UNIT, SCANNED = 4096, 16
"""Most lines of a unit, where the job says nothing; a unit has a multiple of so many, or the last ones of a file."""
_GZIP = b"\x1f\x8b"


class Lines(UnitSource):
    """Parts of files as a `UnitSource`.

    Parameters
    ----------
    files
        The files.
    parts
        Of each unit: place of its file, its first byte and the one behind its last, its first line from 1, and its
        lines.
    classes
        Names of the classes in order.
    """

    width: int | None = None
    dtype = np.dtype(np.int64)

    def __init__(
        self, files: Sequence[DataFile], parts: Sequence[Sequence[int]], spec: LinesData, classes: Sequence[str]
    ) -> None:
        self._files, self._parts, self._spec = files, parts, spec
        self._classes = {name: place for place, name in enumerate(classes)}
        self.sizes: Sequence[int] = [part[4] for part in parts]
        self.features: tuple[int, ...] = (spec.length,)

    def called(self, unit: int) -> str:
        """See `UnitSource`."""
        place, _, _, first, count = self._parts[unit]
        return f"{self._files[place].where}, lines {first} to {first + count - 1}"

    def read(self, unit: int) -> UnitArrays:
        """See `UnitSource`."""
        place, start, stop, first, count = self._parts[unit]
        with self._files[place].open() as file:
            file.seek(start)
            lines = lines_of(file.read(stop - start))
        if len(lines) != count:
            raise DataError(f"{self.called(unit)}: has {len(lines)} lines, and had {count}: the file was written again")
        inputs, targets = np.empty((count, self._spec.length), np.uint8), np.empty(count, np.int64)
        for row, line in enumerate(lines):
            where = f"{self._files[place].where}, line {first + row}"
            name, text = parted(line, self._spec.delimiter, where)
            if name not in self._classes:
                raise DataError(f"{where}: class {name[:40]!r} is in no training line")
            targets[row] = self._classes[name]
            inputs[row] = coded(text, self._spec.length)
        return UnitArrays(inputs.astype(np.int64), targets)


def parted(line: bytes, delimiter: str, where: str) -> tuple[str, bytes]:
    """The class and the text of a line.

    Raises
    ------
    DataError
        There is no delimiter, or no class before it; or the class is not UTF-8.
    """
    name, found, text = line.removeprefix(BOM_UTF8).partition(delimiter.encode())
    if line.startswith(_GZIP):
        raise DataError(f"{where}: is no text but gzip: lines are read from plain files")
    if not line:
        raise DataError(f"{where}: is empty")
    if not found or not name.strip():
        raise DataError(f"{where}: has no class before {delimiter!r} (data.delimiter)")
    try:
        return name.decode().strip(), text
    except UnicodeDecodeError:
        raise DataError(f"{where}: its class is not UTF-8") from None


def read_texts(file: DataFile, spec: LinesData, names: Collection[str]) -> np.ndarray:
    """Read lines of text: int64, (n, length). Where all begin with one of the classes, that is cut off.

    Raises
    ------
    DataError
    """
    texts, delimiter = lines_of(read(file).removeprefix(BOM_UTF8)), spec.delimiter.encode()
    parts = [text.partition(delimiter) for text in texts]
    if all(found and name.strip().decode(errors="replace") in names for name, found, _ in parts):
        texts = [text for _, _, text in parts]
    return np.stack([coded(text, spec.length) for text in texts]).astype(np.int64)


def lines_of(content: bytes) -> list[bytes]:
    """The lines of a text without their ends, LF or CR LF; a last one without an end is one too."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def coded(text: bytes, length: int) -> np.ndarray:
    """The first bytes of a text, 0 behind its end: uint8, shape (length,)."""
    row, kept = np.zeros(length, np.uint8), text[:length]
    row[: len(kept)] = np.frombuffer(kept, np.uint8)
    return row


def open_lines(spec: LinesData, folder: Path) -> StreamSets:
    """Find the units of the files; lines are counted once, and the result is kept (see `scanned`).

    Raises
    ------
    DataError
    """
    files = find_files(spec.files, folder, _SUFFIX)
    found, where = _scan(files, spec), files[0].where
    parts = found["parts"]
    cut = cut_units(len(parts), spec, f"units of {max(part[4] for part in parts)} lines (data.unit)", where)
    classes = sorted({name for place in cut[0] for name in found["classes"][place]})
    if len(classes) < 2:
        raise DataError(f"{where}: all training lines have the same class, {classes[0]!r}")
    _check_held(parts, found["classes"], {*cut[1], *cut[2]}, classes, files)
    made = {
        name: Lines(files, [parts[place] for place in part], spec, classes) if part else None
        for name, part in zip(SETS, cut, strict=True)
    }
    for name, texts in other_files(spec).items():
        others = find_other_files(texts, folder, _SUFFIX, files)
        scan = _scan(others, spec)
        _check_held(scan["parts"], scan["classes"], range(len(scan["parts"])), classes, others)
        made[name] = Lines(others, scan["parts"], spec, classes)
    return StreamSets(made, tuple(classes), objects=objects_digest(files))


def _check_held(
    parts: Sequence[Sequence[int]],
    held: Sequence[Sequence[str]],
    units: Iterable[int],
    classes: Sequence[str],
    files: Sequence[DataFile],
) -> None:
    """Check that the units of other sets have no class that is in no training line."""
    for unit in units:
        if unknown := {*held[unit]} - {*classes}:
            place, _, _, first, count = parts[unit]
            raise DataError(
                f"{files[place].where}, lines {first} to {first + count - 1}: class {min(unknown)[:40]!r} is in no "
                "training line"
            )


def _scan(files: Sequence[DataFile], spec: LinesData) -> dict[str, Any]:
    asked = {"source": "lines", "delimiter": spec.delimiter}
    found = scanned(files, asked, lambda: _count(files, spec))
    return _joined(found, unit_size(spec.unit, UNIT, sum(part[4] for part in found["parts"])))


def _joined(found: dict[str, Any], size: int) -> dict[str, Any]:
    """Units of at least `size` lines of one file each, or of its last ones, from the parts of `_count`."""
    parts, classes = list[list[int]](), list[list[str]]()
    for part, own in zip(found["parts"], found["classes"], strict=True):
        if parts and parts[-1][0] == part[0] and parts[-1][4] < size:
            parts[-1][2], parts[-1][4] = part[2], parts[-1][4] + part[4]
            classes[-1] = sorted({*classes[-1], *own})
        else:
            parts.append([*part])
            classes.append(own)
    return {"parts": parts, "classes": classes}


def _count(files: Sequence[DataFile], spec: LinesData) -> dict[str, Any]:
    """Parts of `SCANNED` lines of all files, and of each the names of its classes."""
    parts, classes = list[list[int]](), list[list[str]]()
    for place, file in enumerate(files):
        at, number = 0, 0
        with file.open() as lines:
            for line in lines:
                if number % SCANNED == 0:
                    parts.append([place, at, at, number + 1, 0])
                    classes.append([])
                number += 1
                at += len(line)
                name, _ = parted(
                    line.removesuffix(b"\n").removesuffix(b"\r"), spec.delimiter, f"{file.where}, line {number}"
                )
                if name not in classes[-1]:
                    classes[-1].append(name)
                parts[-1][2], parts[-1][4] = at, parts[-1][4] + 1
    if not parts:
        raise DataError(f"{files[0].where}: there are no lines")
    return {"parts": parts, "classes": classes}
