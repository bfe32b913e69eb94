"""Files that a job names: by path, as all files of a folder, or by a pattern."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dbelief.data.files import cause, missing
from dbelief.errors import DataError
from dbelief.job import resolve

_WILD = frozenset("*?[")


@dataclass(frozen=True)
class DataFile:
    """A file of data.

    Attributes
    ----------
    where
        Its path, as messages name it.
    size
        In bytes.
    stamp
        Changes when the file is written again.
    """

    where: str
    size: int
    stamp: str

    def open(self) -> IO[bytes]:
        """Open it for reading, at any position.

        Raises
        ------
        DataError
            It cannot be opened.
        """
        try:
            return Path(self.where).open("rb")
        except OSError as error:
            raise DataError(f"{self.where}: {cause(error)}") from None


def find_files(texts: Sequence[str], folder: Path, suffix: str) -> list[DataFile]:
    """The files that paths, folders and patterns of a job file stand for, in their order.

    Parameters
    ----------
    texts
        As the job file has them. A folder stands for all files below it whose names end in `suffix`, a pattern for all
        that match it (`**` for folders at any depth); both in the order of their paths.
    folder
        The job's.

    Raises
    ------
    DataError
        A file or folder is missing, or a pattern matches nothing; or a file is named twice.
    JobError
        A path names an environment variable that is not set.
    """
    found: dict[str, DataFile] = {}
    for text in texts:
        path = resolve(text, folder)
        for one in _matching(path, suffix):
            if str(one) in found:
                raise DataError(f"{one}: is named twice by the job's files")
            found[str(one)] = _described(one)
    return list(found.values())


def _matching(path: Path, suffix: str) -> list[Path]:
    if path.is_dir():
        matching = sorted(one for one in path.rglob(f"*{suffix}") if one.is_file())
        what = f"no file below it ends in {suffix}"
    elif _WILD & {*str(path)} and not path.exists():
        matching = sorted(one for one in map(Path, glob.glob(str(path), recursive=True)) if one.is_file())
        what = "no file matches this pattern"
    else:
        return [path]
    if not matching:
        raise DataError(f"{path}: {what}")
    return matching


def _described(path: Path) -> DataFile:
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        raise DataError(f"{path}: {cause(error)}") from None
    return DataFile(str(path), stat.st_size, str(stat.st_mtime_ns))
