"""Text whose rows are lines, cut into parts of so many rows by one pass of a compiled loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.data.files.contents import blocks
from dbelief.data.files.data_file import DataFile
from dbelief.data.formats.text_start import text_start
from dbelief.errors import DataError

_LF, _SPACE, _FIRST_BLANK, _LAST_BLANK = 10, 32, 9, 13


class FilePart(NamedTuple):
    """Lines of a file: its first byte and the one behind its last, its first line from 1, its lines, and the text."""

    start: int
    stop: int
    line: int
    lines: int
    content: bytes


def cut_file(file: DataFile, size: int, comment: int, header: bytes | None) -> Iterator[FilePart]:
    """Parts of `size` rows of a file, plain or .gz, and one of what is left; `comment`, `header`: see `LineFormat`.

    Raises
    ------
    DataError
        It is unreadable, is no text, has another header than is expected, or no rows.
    """
    held, rows, start, line, first = list[bytes](), 0, 0, 1, True
    left, none = np.zeros(2, np.int64), True
    ends = lines = np.empty(0, np.int64)
    for block in blocks(file):
        if first:
            start = text_start(block, str(file))
            if header is not None:
                start, line = _behind_header(block, start, header, str(file)), 2
            block, first = block[start:], False
        most = (rows + len(block) // 2 + 1) // size  # a row is one byte and a line feed, or more
        if len(ends) < most:
            ends, lines = np.empty((2, most), np.int64)
        count = _cut_rows(np.frombuffer(block, np.uint8), size, comment, rows, ends, lines, left)
        at, counted = 0, 0
        for end, upto in zip(ends[:count].tolist(), lines[:count].tolist(), strict=True):
            content = b"".join([*held, block[at:end]])
            new = upto - counted + sum(part.count(b"\n") for part in held)
            lasting = new + (not content.endswith(b"\n"))
            yield FilePart(start, start + len(content), line, lasting, content)
            start, line, at, counted, none = start + len(content), line + new, end, upto, False
            held.clear()
        held.append(block[at:])
        rows = int(left[0])
    if rows:
        content = b"".join(held)
        lasting = content.count(b"\n") + (not content.endswith(b"\n"))
        yield FilePart(start, start + len(content), line, lasting, content)
    elif none:
        raise DataError(f"{file}: has no rows")


def line_of_row(content: bytes, row: int, comment: int) -> int:
    """The line, from 0, that row `row` of a text is, from 0; `comment`: see `LineFormat`."""
    words = ((line, text.strip()) for line, text in enumerate(content.split(b"\n")))
    rows = (line for line, word in words if word and word[0] != comment)
    return next(islice(rows, row, None))


def _behind_header(block: bytes, start: int, header: bytes, where: str) -> int:
    """Where the rows begin in the first block of a file."""
    end = block.find(b"\n", start) + 1 or len(block)
    own = block[start:end].rstrip(b"\r\n")
    if own != header:
        shown = own[:60].decode(errors="replace")
        raise DataError(f"{where}: its first line is {shown!r}, and that of the first file is another one")
    return end


@kernel("read uint8", "int64", "int64", "int64", "write int64", "write int64", "write int64", "int64")
def _cut_rows(content: Any, size: int, comment: int, rows: int, ends: Any, lines: Any, left: Any) -> int:
    """Write where each complete unit of `size` rows ends in a block of lines, and the lines up to there.

    A line of blanks is no row, nor is one whose first byte behind blanks is `comment`; -1: there are no comments.

    Parameters
    ----------
    rows
        Rows of the first unit that are before the block.
    left : int64, shape (2,)
        Rows of the last unit, which is not complete, and lines of the block.

    Returns
    -------
    int
        Number of units that are written.
    """
    units, count, begun, skipped = 0, 0, False, False
    for at in range(content.size):
        byte = content[at]
        if not begun and not skipped and byte != _SPACE and not _FIRST_BLANK <= byte <= _LAST_BLANK:
            begun, skipped = byte != comment, byte == comment
        if byte == _LF or at + 1 == content.size:
            count += byte == _LF
            rows += begun
            begun, skipped = False, False
            if rows == size:
                ends[units], lines[units] = at + 1, count
                units += 1
                rows = 0
    left[0], left[1] = rows, count
    return units
