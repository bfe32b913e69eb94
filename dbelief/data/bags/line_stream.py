"""Text whose rows are lines, as a stream of mini-batches: read from the first to the last, or unit by unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from dbelief.data.files.data_file import DataFile
from dbelief.data.files.locations import find_files
from dbelief.data.files.scan_cache import scanned
from dbelief.errors import DataError

from .batch import Check, SparseBatch
from .line_cuts import FilePart, cut_file, line_of_row

Files = str | Path | Sequence[str | Path]
"""A file, folder, pattern or URL, or several of them."""


def named_files(files: Files, suffix: str) -> list[DataFile]:
    """The files that a script names, in their order; of a folder those whose names end in `suffix`.

    Raises
    ------
    DataError
        One is missing, or is named twice.
    """
    texts = [files] if isinstance(files, str | Path) else files
    return find_files([str(text) for text in texts], Path(), suffix)


class LineFormat(Protocol):
    """A format of text whose rows are lines.

    Attributes
    ----------
    comment
        The byte that begins a line which is no row; -1: there is none.
    header
        The first line of each file, which is no row; None: all lines are rows.
    """

    comment: int
    header: bytes | None

    def parse(self, content: bytes, line: int, where: str) -> SparseBatch:
        """The rows of whole lines, the first of which is line `line` of the file.

        Raises
        ------
        DataError
            A line violates the format; the message names it.
        """
        ...


class LineStream:
    """Mini-batches of sparse rows from text files; each iteration begins anew. Memory: one block of text, one batch.

    A mini-batch has `size` rows of one file, the last one of a file the rest. For the replicas of a job they are units
    that are leased: `dbelief.torch.UnitDataset(stream)`, whose `collate` gives batches of tensors. For that the lines
    are counted, once, by one process of a machine.

    Parameters
    ----------
    files
        Of text in UTF-8, as `named_files` gives them; those that end in .gz are unpacked.
    format
        What its lines are.
    size
        Rows of a mini-batch.
    check
        Called with each mini-batch; None: there is none.

    Raises
    ------
    ValueError
        The size is below 1.
    """

    def __init__(self, files: Sequence[DataFile], format: LineFormat, size: int, check: Check | None = None) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, must be 1 or more")
        self._files, self._format, self._size, self._check = files, format, size, check

    def __iter__(self) -> Iterator[SparseBatch]:
        for file in self._files:
            for part in self._cut(file):
                yield self._parsed(part.content, part.line, file.where)

    @property
    def units(self) -> Sequence[str]:
        """Names of the mini-batches, for `UnitDataset`.

        Raises
        ------
        DataError
            A file is compressed, or has no rows.
        """
        return tuple(self._parts)

    def read(self, unit: str) -> Iterator[SparseBatch]:
        """Read a unit.

        Parameters
        ----------
        unit
            One of `units`.

        Returns
        -------
        iterator of SparseBatch
            Its mini-batch.

        Raises
        ------
        DataError
            The file was written again, or a line violates the format.
        """
        file, part = self._parts[unit]
        with file.open() as opened:
            opened.seek(part.start)
            content = opened.read(part.stop - part.start)
        if len(content) != part.stop - part.start:
            raise DataError(f"{unit}: the file was written again")
        yield self._parsed(content, part.line, file.where)

    def _parsed(self, content: bytes, line: int, where: str) -> SparseBatch:
        batch = self._format.parse(content, line, where)
        if self._check is not None:
            comment = self._format.comment
            self._check(batch, lambda row: f"{where}, line {line + line_of_row(content, row, comment)}")
        return batch

    @cached_property
    def _parts(self) -> Mapping[str, tuple[DataFile, FilePart]]:
        for file in self._files:
            if file.suffix == ".gz":
                raise DataError(f"{file}: is compressed, and replicas read parts of files: unpack it for a job")
        header = (self._format.header or b"").decode(errors="replace")
        asked: dict[str, Any] = {"source": "rows", "size": self._size, "comment": self._format.comment}
        found = scanned(self._files, asked | {"header": header}, self._scan)["parts"]
        listed: dict[str, tuple[DataFile, FilePart]] = {}
        for place, *numbers in found:
            part, file = FilePart._make([*numbers, b""]), self._files[place]
            listed[f"{file}, lines {part.line} to {part.line + part.lines - 1}"] = file, part
        return listed

    def _cut(self, file: DataFile) -> Iterator[FilePart]:
        return cut_file(file, self._size, self._format.comment, self._format.header)

    def _scan(self) -> dict[str, Any]:
        cuts = ((place, self._cut(file)) for place, file in enumerate(self._files))
        return {"parts": [[place, *part[:-1]] for place, parts in cuts for part in parts]}
