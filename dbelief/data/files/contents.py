"""File contents as bytes, plain or .gz, with one-line errors. An object of a store is fetched once, and kept."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from dbelief.errors import DataError

from .data_file import DataFile
from .errors import cause

BLOCK_BYTES = 1 << 18


def read(file: DataFile, most: int = -1) -> bytes:
    """Read a file, or at most its first `most` bytes; one whose name ends in .gz is unpacked.

    Raises
    ------
    DataError
        The file or its folder is missing, or it is unreadable, empty, or a gzip file that is truncated or damaged.
    """
    with _opened(file) as opened:
        content = opened.read(most)
    if not content:
        raise DataError(f"{file}: is empty")
    return content


def lines(file: DataFile) -> Iterator[bytes]:
    """Read a file line by line, in constant memory; one whose name ends in .gz is unpacked.

    Raises
    ------
    DataError
        As in `read`; damage is detected when it is reached.
    """
    with _opened(file) as opened:
        yield from opened


def blocks(file: DataFile, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Read a file in blocks of whole lines; one whose name ends in .gz is unpacked. Memory: two blocks.

    Parameters
    ----------
    size
        Bytes of a block; where a line is longer, of that line.

    Raises
    ------
    DataError
        As in `read`; damage is detected when it is reached.
    """
    begun: list[bytes] = []  # of a line whose end has not been read
    empty = True
    with _opened(file) as opened:
        while part := opened.read(size):
            empty = False
            if end := part.rfind(b"\n") + 1:
                yield b"".join([*begun, part[:end]])
                begun.clear()
            begun.append(part[end:])
    if empty:
        raise DataError(f"{file}: is empty")
    if last := b"".join(begun):
        yield last


@contextmanager
def _opened(file: DataFile) -> Iterator[IO[bytes]]:
    try:
        with file.open_whole() as plain:
            if file.suffix != ".gz":
                yield plain
            else:
                with gzip.open(plain, "rb") as unpacked:
                    yield unpacked  # type: ignore[misc]  # a gzip file has the methods that are used here
    except EOFError:
        raise DataError(f"{file}: the gzip file is cut short") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}: not a gzip file, or a damaged one ({error})") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: {cause(error)}") from None
