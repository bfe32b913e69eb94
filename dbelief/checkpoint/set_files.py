"""Files of one snapshot set, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Protocol

from dbelief.errors import WriteFailed
from dbelief.process.atomic_file import atomic_write
from dbelief.url import Url

COMMIT = "set.json"
"""Name of the file that completes a set."""
TORN = "set.torn"
"""Its name once the set was found to be damaged."""


class SetFiles(Protocol):
    """Reading and writing of a set's files by name. A file that is missing raises FileNotFoundError."""

    @property
    def place(self) -> str:
        """Where they are written, below the place of all sets."""
        ...

    def beside(self, place: str) -> SetFiles:
        """The files of another set, at its `place`."""
        ...

    def complete(self) -> bool:
        """Whether the set is complete, with these files; raises WriteFailed where that cannot be found out."""
        ...

    def torn(self) -> bool:
        """Whether the set was found to be damaged; raises WriteFailed as `complete` does."""
        ...

    def make(self) -> None:
        """Make the place of the files, where there is none yet; raises WriteFailed where that fails."""

    def at(self, name: str) -> Path | Url:
        """Where a file is, for messages."""
        ...

    def write(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file to write from its beginning to its end, which exists at the end of the `with` block.

        Raises
        ------
        WriteFailed
            It cannot be written.
        """
        ...

    def read(self, name: str) -> bytes:
        """Content of a file."""
        ...

    def open(self, name: str) -> BufferedReader:
        """A file to read from any position."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        ...

    def unlisted_manifests(self) -> list[str]:
        """Names of the manifests of a set whose `set.json` names none, as an earlier version wrote it.

        Raises
        ------
        CorruptSnapshot
            No earlier version wrote to such a place.
        """
        ...


class LocalFiles:
    """Files of a set in a folder.

    Attributes
    ----------
    folder
        The set's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def place(self) -> str:
        """See `SetFiles`."""
        return self.folder.name

    def beside(self, place: str) -> LocalFiles:
        """See `SetFiles`."""
        return LocalFiles(self.folder.parent / place)

    def complete(self) -> bool:
        """See `SetFiles`."""
        return self.exists(COMMIT)

    def torn(self) -> bool:
        """See `SetFiles`."""
        return self.exists(TORN)

    def make(self) -> None:
        """See `SetFiles`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteFailed(f"{self.folder}: cannot be made: {error.strerror or error}") from error

    def at(self, name: str) -> Path:
        """See `SetFiles`."""
        return self.folder / name

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """See `SetFiles`."""
        with atomic_write(self.at(name)) as file:
            yield file

    def read(self, name: str) -> bytes:
        """See `SetFiles`."""
        return self.at(name).read_bytes()

    def open(self, name: str) -> BufferedReader:
        """See `SetFiles`."""
        return self.at(name).open("rb")

    def exists(self, name: str) -> bool:
        """See `SetFiles`."""
        return self.at(name).exists()

    def unlisted_manifests(self) -> list[str]:
        """See `SetFiles`."""
        return sorted(path.name for path in self.folder.glob("shard-*.json"))


def files_in(folder: Path | SetFiles) -> SetFiles:
    """The files of a set that is given by its folder, or by its files."""
    return LocalFiles(folder) if isinstance(folder, Path) else folder
