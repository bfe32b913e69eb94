"""Errors of files in one line."""

from __future__ import annotations

from pathlib import Path

from dbelief.errors import DataError
from dbelief.job import nearest


def missing(path: Path) -> DataError:
    """The error for a missing file; it names the folder if that is missing."""
    if path.is_symlink():
        return DataError(f"{path}: is a link to {path.readlink()}, which does not exist")
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
