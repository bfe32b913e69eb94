"""File contents as bytes, plain or .gz, with one-line errors."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dbelief.errors import DataError
from dbelief.job import nearest

BLOCK_BYTES = 1 << 18


def read(path: Path, most: int = -1) -> bytes:
    """Read a file, or at most its first `most` bytes; one whose name ends in .gz is unpacked.

    Raises
    ------
    DataError
        The file or its folder is missing, or it is unreadable, empty, or a gzip file that is truncated or damaged.
    """
    with _opened(path) as file:
        content = file.read(most)
    if not content:
        raise DataError(f"{path}: is empty")
    return content


def lines(path: Path) -> Iterator[bytes]:
    """Read a file line by line, in constant memory; one whose name ends in .gz is unpacked.

    Raises
    ------
    DataError
        As in `read`; damage is detected when it is reached.
    """
    with _opened(path) as file:
        yield from file


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[bytes]:
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
    with _opened(path) as file:
        while part := file.read(size):
            empty = False
            if end := part.rfind(b"\n") + 1:
                yield b"".join([*begun, part[:end]])
                begun.clear()
            begun.append(part[end:])
    if empty:
        raise DataError(f"{path}: is empty")
    if last := b"".join(begun):
        yield last


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]  # a gzip file has the methods that are used here
    except EOFError:
        raise DataError(f"{path}: the gzip file is cut short") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a gzip file, or a damaged one ({error})") from None
    except FileNotFoundError as error:
        raise missing(path) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {cause(error)}") from None


def missing(path: Path) -> DataError:
    """The error for a missing file; it names the folder if that is missing."""
    if not path.parent.is_dir():
        return DataError(f"{path.parent}: no such folder")
    try:
        near = nearest(path.name, [other.name for other in path.parent.iterdir()])
    except OSError:
        near = None
    return DataError(f"{path}: no such file" + (f"; did you mean {near}?" if near else ""))


def cause(error: Exception) -> str:
    """A short reason why a file could not be read."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = error.strerror if isinstance(error, OSError) else str(error)
    return " ".join((text or type(error).__name__).split()).lower()


def find(folder: Path, name: str) -> Path:
    """Find a file that may be plain or end in .gz; the plain one if both exist.

    Raises
    ------
    DataError
        Neither exists, or the folder does not.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    if not folder.is_dir():
        raise missing(folder / name)
    raise DataError(f"{folder / name}: no such file, nor one that ends in .gz")
