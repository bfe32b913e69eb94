"""Files as bytes, plain or .gz, with one line for whatever is wrong with them."""

import gzip
import zlib
from pathlib import Path

from dbelief.errors import DataError


def read(path: Path) -> bytes:
    """Read a whole file; one whose name ends in .gz is unpacked.

    Raises
    ------
    DataError
        The file is missing, unreadable, empty, or a gzip file that is cut short or damaged.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except EOFError:
        raise DataError(f"{path}: the gzip file is cut short") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a gzip file, or a damaged one ({error})") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {cause(error)}") from None
    if not content:
        raise DataError(f"{path}: is empty")
    return content


def cause(error: Exception) -> str:
    """Say in a few words why a file could not be read."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = error.strerror if isinstance(error, OSError) else str(error)
    return " ".join((text or type(error).__name__).split()).lower()


def find(folder: Path, name: str) -> Path:
    """Find a file that may be plain or end in .gz; the plain one where there are both.

    Raises
    ------
    DataError
        There is neither.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder / name}: no such file, nor one that ends in .gz")
