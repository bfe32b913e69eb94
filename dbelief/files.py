"""A file that is there whole or not at all, however the machine dies while it is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dbelief.errors import NotWritten


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be written in any order; it appears under its name at the end of the block, and is durable then.

    Raises
    ------
    NotWritten
        Where the disk is full, say; names the file. What has that name already stays as it was.
    """
    temporary = path.with_suffix(".writing")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise NotWritten(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A name is in its folder, which has to reach the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
