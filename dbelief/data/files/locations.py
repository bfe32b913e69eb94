"""Files that a job names: by path or URL, as all files below a folder or prefix, or by a pattern."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from dbelief.errors import DataError
from dbelief.job import place
from dbelief.storage.object_store import connect
from dbelief.url import Url

from .data_file import DataFile, file_at, path_of
from .errors import cause

_WILD = frozenset("*?[")
_NOWHERE = frozenset[tuple[int, int]]()
_NO_DATA = frozenset({"__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini"})
"""Names of what file managers and archives leave among files, besides those that begin with a dot."""


def find_files(texts: Sequence[str], folder: Path, suffix: str) -> list[DataFile]:
    """The files that paths, folders, patterns and URLs of a job file stand for, in their order.

    Parameters
    ----------
    texts
        As the job file has them. A folder, or a prefix in a store, stands for all files below it whose names end in
        `suffix`, a pattern for all that match it (`**` for folders at any depth); both in the order of their paths.
        What is hidden is left out (see `is_hidden`), except where the pattern itself begins so.
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
        for file in _named(place(text, folder), suffix):
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


def find_member(where: Path | Url, name: str) -> DataFile:
    """The file of a folder or prefix that may be plain or end in .gz; the plain one if both exist.

    Raises
    ------
    DataError
        Neither exists, or the folder does not.
    """
    for one in (where / name, where / f"{name}.gz"):
        if exists(one):
            return file_at(one)
    if isinstance(where, Path) and not where.is_dir():
        raise DataError(f"{where}: no such folder")
    raise DataError(f"{where / name}: no such file, nor one that ends in .gz")


def files_below(where: Path | Url) -> dict[tuple[str, ...], DataFile]:
    """All files below a folder or prefix that are not hidden, by the parts of their paths there, in their order.

    Those in a folder are not looked at: their sizes and stamps are not known. Links to folders are followed, except to
    one that the link is in.

    Raises
    ------
    DataError
        There is no such folder, or it cannot be listed.
    """
    return {parts: file for parts, file in _below(where, ("**",)).items() if not any(map(is_hidden, parts))}


def folders_in(where: Path | Url) -> list[str]:
    """Names of the folders in a folder that are not hidden, those without files too; a store has only prefixes."""
    path = path_of(where)
    return [] if path is None else [one.name for one in path.iterdir() if one.is_dir() and not is_hidden(one.name)]


def exists(where: Path | Url) -> bool:
    """Whether there is a file at a path or URL."""
    path = path_of(where)
    return connect(Url(where)).exists(Url(where)) if path is None else path.is_file()


def is_folder(where: Path | Url) -> bool:
    """Whether a path or URL is that of a folder, or of no object, so that it may be a prefix of some."""
    path = path_of(where)
    return not exists(where) if path is None else path.is_dir()


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is none of data: .x, ._x, .ipynb_checkpoints, __MACOSX and their like."""
    return name.startswith(".") or name in _NO_DATA


def _is_marker(name: str) -> bool:
    """Whether it is hidden, or one of the files that systems write beside tables: _SUCCESS, _metadata, _temporary."""
    return is_hidden(name) or (name.startswith("_") and "=" not in name)


def _named(where: Path | Url, suffix: str) -> list[DataFile]:
    """The files that one path or URL stands for."""
    one = "file" if path_of(where) is not None else "object"
    fixed, pattern = _cut(where)
    if not pattern and not is_folder(where):
        return [file_at(where)]
    found = _below(fixed, pattern or ("**",))
    spelled = {part[0] for part in pattern}
    shown = {
        parts: file
        for parts, file in found.items()
        if not any(_is_marker(name) and name[0] not in spelled for name in parts)
    }
    matching = [file for parts, file in shown.items() if pattern or parts[-1].endswith(suffix)]
    if not matching:
        what = f"no {one} matches this pattern" if pattern else f"no {one} below it ends in {suffix}"
        if not found and not pattern and one == "object":
            what = "there is no such object, and none below it"
        hidden = len(found) - len(shown)
        raise DataError(f"{where}: {what}{f'; {hidden} hidden ones are left out' if hidden else ''}")
    return [file if one == "object" else file_at(_like(where, file.where)) for file in matching]


def _like(where: Path | Url, text: str) -> Path | Url:
    return Url(text) if isinstance(where, Url) else Path(text)


def _cut(where: Path | Url) -> tuple[Path | Url, tuple[str, ...]]:
    """What is before the first part that is a pattern, and no folder of that name; and the parts from there."""
    path = path_of(where)
    if not _WILD & {*str(where)} or (path.exists() if path is not None else "/" not in str(where).partition("://")[2]):
        return where, ()
    fixed, parts = _cut(where.parent)
    return (fixed, (*parts, where.name)) if parts or _WILD & {*where.name} else (where, ())


def _below(where: Path | Url, pattern: tuple[str, ...]) -> dict[tuple[str, ...], DataFile]:
    """The files below a folder or prefix whose parts match a pattern's, in their order."""
    path = path_of(where)
    if path is not None:
        found = {parts: DataFile(f"{where}/{'/'.join(parts)}") for parts in _walk(path, pattern)}
    else:
        url = Url(where)
        stats = connect(url).list(url)
        found = {tuple(one[len(url) + 1 :].split("/")): DataFile(one, *stat) for one, stat in stats.items()}
    return {parts: found[parts] for parts in sorted(found) if _matches(parts, pattern)}


def _walk(
    folder: Path,
    pattern: tuple[str, ...],
    above: tuple[str, ...] = (),
    inside: frozenset[tuple[int, int]] = _NOWHERE,
) -> Iterator[tuple[str, ...]]:
    """Parts of the paths of files below a folder that may match; `inside`: the folders that it is in."""
    at = folder.joinpath(*above)
    try:
        own = os.stat(at)
        inside |= {(own.st_dev, own.st_ino)}
        with os.scandir(at) as entries:
            for entry in entries:
                parts = (*above, entry.name)
                if not entry.is_dir():
                    if entry.is_file() or entry.is_symlink():  # one that leads nowhere is an error where it is read
                        yield parts
                elif _may_hold(parts, pattern):
                    there = os.stat(entry.path)
                    if (there.st_dev, there.st_ino) not in inside:  # else a link to a folder that it is in
                        yield from _walk(folder, pattern, parts, inside)
    except FileNotFoundError:
        raise DataError(f"{at}: no such folder") from None
    except OSError as error:
        raise DataError(f"{error.filename or at}: {cause(error)}") from None


def _may_hold(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a folder may hold what matches a pattern."""
    for name, part in zip(parts, pattern, strict=False):
        if part == "**" or not fnmatchcase(name, part):
            return part == "**"
    return len(parts) < len(pattern)


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the parts of a path match those of a pattern: `*` within a part, `**` for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[at:], pattern[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
