"""A file of data, in a folder or in a store of objects."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from dbelief.errors import DataError
from dbelief.job import place
from dbelief.storage.backends import Stat
from dbelief.storage.object_store import connect
from dbelief.url import Url, is_url

from .errors import cause, missing
from .object_cache import fetch
from .object_ranges import open_ranges


@dataclass(frozen=True)
class DataFile:
    """A file of data.

    Attributes
    ----------
    where
        Its path or URL, as messages name it; so does `str`.
    size
        In bytes; 0 where it is not known.
    stamp
        Changes when the file is written again; "": not known.
    """

    where: str
    size: int = 0
    stamp: str = ""

    def __str__(self) -> str:
        return self.where

    @property
    def name(self) -> str:
        """What is behind the last slash."""
        return PurePosixPath(self.where).name

    @property
    def suffix(self) -> str:
        """The end of its name from the last dot, in small letters."""
        return PurePosixPath(self.where).suffix.lower()

    @property
    def path(self) -> Path | None:
        """Where it is in a folder; None: it is an object of a store."""
        return path_of(self.where)

    def open(self) -> IO[bytes]:
        """Open it for reading at any position: of an object only the parts that are read are fetched, each time.

        Raises
        ------
        DataError
            It cannot be opened, or was written again. Reading an object raises StorageError or Unavailable where the
            store refuses it, does not answer, or has another object of that name by now.
        """
        if (path := self.path) is None:
            return open_ranges(Url(self.where), Stat(self.size, self.stamp))
        return self._opened(path)

    def open_whole(self) -> IO[bytes]:
        """Open it as a file of this machine, which can be mapped into memory: an object is fetched once, and kept.

        The file has its path as `name`; while it is open, or mapped, the object stays.

        Raises
        ------
        DataError
            As `open`; or it has no room among the kept objects.
        StorageError, Unavailable
            The store refuses it, or does not answer.
        """
        if (path := self.path) is None:
            return fetch(Url(self.where), Stat(self.size, self.stamp))
        return self._opened(path)

    def _opened(self, path: Path) -> IO[bytes]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise missing(path) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.where}: {cause(error)}") from None
        if self.stamp and stamp(os.fstat(file.fileno())) != (self.size, self.stamp):
            file.close()
            raise DataError(f"{self.where}: was written again after the job began")
        return file


def find_file(text: str, folder: Path) -> DataFile:
    """The file that a path or URL of a job file stands for, which need not exist; `folder`: the job's.

    Raises
    ------
    JobError
        The path names an environment variable that is not set.
    StorageError, Unavailable
        A store refuses to say what it has, or does not answer.
    DataError
        It is an object that does not exist, or a file that cannot be looked at.
    """
    return file_at(place(text, folder))


def file_at(where: Path | Url) -> DataFile:
    """The file at a path or URL; raises as `find_file`."""
    path = path_of(where)
    if path is None:
        url = Url(where)
        try:
            return DataFile(url, *connect(url).stat(url))
        except FileNotFoundError:
            raise DataError(f"{url}: there is no such object") from None
    try:
        found = path.stat()
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: {cause(error)}") from None
    return DataFile(str(where), *stamp(found))


def objects_digest(files: Iterable[DataFile]) -> str:
    """Digest of the names, sizes and tags of those files that are objects of a store; "" where none is."""
    rows = [[file.where, file.size, file.stamp] for file in files if file.path is None]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] if rows else ""


def path_of(where: Path | str) -> Path | None:
    """The path that this is, or that its URL has; None: it is the URL of an object in a store."""
    if isinstance(where, Path):
        return where
    if where.startswith("file://"):
        return Path(where.removeprefix("file://"))
    return None if is_url(where) else Path(where)


def stamp(found: os.stat_result) -> tuple[int, str]:
    """Size and stamp of a file; those of a pipe are not known."""
    return (found.st_size, str(found.st_mtime_ns)) if stat.S_ISREG(found.st_mode) else (0, "")
