"""Files that a job names: by path or URL, as all files below a folder or prefix, or by a pattern."""

from __future__ import annotations

import glob
import io
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import stat_result
from pathlib import Path
from typing import IO

from dbelief.data.files import cause, missing
from dbelief.errors import DataError
from dbelief.job import resolve
from dbelief.storage.object_store import connect
from dbelief.storage.reader import ObjectReader
from dbelief.url import Url, is_url, parse_url

_WILD = frozenset("*?[")
_BUFFER = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """A file of data.

    Attributes
    ----------
    where
        Its path or URL, as messages name it.
    size
        In bytes.
    stamp
        Changes when the file is written again; "": not known, of an object.
    """

    where: str
    size: int
    stamp: str

    @property
    def path(self) -> Path:
        """Where it can be mapped into memory.

        Raises
        ------
        DataError
            It is an object of a store.
        """
        if is_url(self.where):
            raise DataError(f"{self.where}: this source maps its files into memory: they must be in a folder")
        return Path(self.where)

    def open(self) -> IO[bytes]:
        """Open it for reading, at any position.

        Raises
        ------
        DataError
            It cannot be opened. Reading an object raises StorageError or Unavailable where the store refuses it, or
            does not answer.
        """
        if is_url(self.where):
            url = Url(self.where)
            store = connect(url)
            reader = ObjectReader(lambda start, stop: store.read_range(url, start, stop), self.size)
            return io.BufferedReader(reader, _BUFFER)
        try:
            now = _stamp(Path(self.where).stat())
            if now == (self.size, self.stamp):
                return Path(self.where).open("rb")
        except OSError as error:
            raise DataError(f"{self.where}: {cause(error)}") from None
        raise DataError(f"{self.where}: was written again after the job began")


def find_files(texts: Sequence[str], folder: Path, suffix: str) -> list[DataFile]:
    """The files that paths, folders, patterns and URLs of a job file stand for, in their order.

    Parameters
    ----------
    texts
        As the job file has them. A folder, or a prefix in a store, stands for all files below it whose names end in
        `suffix`, a pattern for all that match it (`**` for folders at any depth); both in the order of their paths.
    folder
        The job's.

    Raises
    ------
    DataError
        A file or folder is missing, or a pattern matches nothing; or a file is named twice.
    JobError
        A path names an environment variable that is not set.
    StorageError, Unavailable
        A store refuses to list its objects, or does not answer.
    """
    found: dict[str, DataFile] = {}
    for text in texts:
        own = _objects(parse_url(text), suffix) if is_url(text) else _paths(resolve(text, folder), suffix)
        for file in own:
            if file.where in found:
                raise DataError(f"{file.where}: is named twice by the job's files")
            found[file.where] = file
    return list(found.values())


def find_other_files(texts: Sequence[str], folder: Path, suffix: str, taken: Sequence[DataFile]) -> list[DataFile]:
    """The files of another set, as `find_files` gives them.

    Raises
    ------
    DataError
        As `find_files`; or one is also among those that are taken.
    """
    found, names = find_files(texts, folder, suffix), {file.where for file in taken}
    for file in found:
        if file.where in names:
            raise DataError(f"{file.where}: is among data.files too: no sample may be in two sets")
    return found


def _paths(path: Path, suffix: str) -> list[DataFile]:
    if path.is_dir():
        matching = sorted(one for one in path.rglob(f"*{suffix}") if one.is_file())
        what = f"no file below it ends in {suffix}"
    elif (wild := _first_wild(path)) is not None and not path.exists():
        base = Path(*path.parts[:wild])
        found = glob.glob(str(Path(*path.parts[wild:])), root_dir=base, recursive=True)
        matching = sorted(one for one in map(base.joinpath, found) if one.is_file())
        what = "no file matches this pattern"
    else:
        return [_described(path)]
    if not matching:
        raise DataError(f"{path}: {what}")
    return [_described(one) for one in matching]


def _first_wild(path: Path) -> int | None:
    """Place of the first part that is a pattern, and no folder of that name; None: there is none."""
    for place, part in enumerate(path.parts):
        if _WILD & {*part} and not Path(*path.parts[: place + 1]).exists():
            return place
    return None


def _described(path: Path) -> DataFile:
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        raise DataError(f"{path}: {cause(error)}") from None
    return DataFile(str(path), *_stamp(stat))


def _stamp(stat: stat_result) -> tuple[int, str]:
    return stat.st_size, str(stat.st_mtime_ns)


def _objects(url: Url, suffix: str) -> list[DataFile]:
    """Objects of a store; `*` of a pattern matches slashes too."""
    store, fixed = connect(url), url
    while _WILD & {*fixed}:
        fixed = fixed.parent
    listed = store.list(fixed)
    if fixed != url:
        matching, what = [one for one in listed if fnmatchcase(one, url)], "no object matches this pattern"
    elif listed and url not in listed:  # some stores list an object below itself
        matching, what = [one for one in listed if one.endswith(suffix)], f"no object below it ends in {suffix}"
    else:
        listed = store.list(url.parent) if url.parent.partition("://")[2] else {}
        matching, what = [url] if url in listed else [], "there is no such object, and none below it"
    if not matching:
        raise DataError(f"{url}: {what}")
    return [DataFile(one, listed[one], "") for one in sorted(matching)]
