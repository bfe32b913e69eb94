"""Snapshot sets in a store of objects, which has no folders, no renaming, and no locks.

snapshots/SET/ATTEMPT/shard-0.safetensors, shard-0.json, ...   parts, of one attempt; ATTEMPT is random
snapshots/SET/set.json                                         created once: it names the attempt and its manifests

So an attempt that was abandoned, or is still being written by a suspended process, can change no set. Of two
coordinators that complete one set, the store lets one create `set.json`.
"""

from __future__ import annotations

import logging
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from dbelief.checkpoint.checksummed_json import parse_checksummed, with_checksum
from dbelief.checkpoint.set_files import COMMIT, TORN, SetFiles
from dbelief.checkpoint.set_storage import LocalSets, SetStorage, needed_by
from dbelief.checkpoint.snapshot_set import FORMAT, count_of
from dbelief.errors import CorruptSnapshot, SnapshotError, StorageError, Unavailable, WriteFailed
from dbelief.process.runtime import runtime
from dbelief.storage.object_store import ObjectStore, connect
from dbelief.url import Url, is_url

log = logging.getLogger(__name__)


@contextmanager
def _written() -> Iterator[None]:
    """Where the store cannot be written: WriteFailed, as with a disk."""
    try:
        yield
    except (Unavailable, StorageError) as error:
        raise WriteFailed(str(error)) from None


class ObjectFiles:
    """Files of a set in a store of objects.

    Parameters
    ----------
    prefix
        The set's, SET.
    attempt
        The attempt that is being written; None: the one that `set.json` names.
    """

    def __init__(self, store: ObjectStore, prefix: Url, attempt: str | None = None) -> None:
        self._store, self._prefix, self._attempt = store, prefix, attempt
        self._checksums: dict[str, int] = {}

    def __str__(self) -> str:
        return str(self._prefix)

    @property
    def place(self) -> str:
        """See `SetFiles`."""
        return f"{self._prefix.name}/{self._attempt}"

    def beside(self, place: str) -> ObjectFiles:
        """See `SetFiles`."""
        set_id, _, attempt = place.partition("/")
        return ObjectFiles(self._store, self._prefix.parent / set_id, attempt)

    def complete(self) -> bool:
        """See `SetFiles`. False where another attempt has completed it."""
        commit = self._prefix / COMMIT
        with _written(), suppress(CorruptSnapshot):
            content = parse_checksummed(commit, lambda: self._store.read(commit), FORMAT)
            return bool(content["attempt"] == self._attempt)
        return False

    def torn(self) -> bool:
        """See `SetFiles`."""
        with _written():
            found = self._store.exists(self._prefix / TORN)
        return found

    def make(self) -> None:
        """See `SetFiles`. A prefix need not be made."""

    def at(self, name: str) -> Url:
        """See `SetFiles`."""
        if name == COMMIT:
            return self._prefix / name
        if self._attempt is None:
            commit = self._prefix / COMMIT
            content = parse_checksummed(commit, lambda: self._store.read(commit), FORMAT)
            self._attempt, self._checksums = content["attempt"], content["manifests"]
        return self._prefix / self._attempt / name

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """See `SetFiles`."""
        with _written(), self._store.upload(self.at(name)) as file:
            yield cast("BinaryIO", file)

    def read(self, name: str) -> bytes:
        """See `SetFiles`. A manifest that is not the one of the commit is damaged."""
        url = self.at(name)
        content = self._store.read(url)
        if name in self._checksums and zlib.crc32(content) != self._checksums[name]:
            raise CorruptSnapshot(f"{url}: is not the one that its {COMMIT} names")
        return content

    def open(self, name: str) -> BufferedReader:
        """See `SetFiles`."""
        return BufferedReader(self._store.open(self.at(name)))

    def exists(self, name: str) -> bool:
        """See `SetFiles`."""
        return self._store.exists(self.at(name))

    def unlisted_manifests(self) -> list[str]:
        """See `SetFiles`."""
        raise CorruptSnapshot(f"{self._prefix / COMMIT}: does not exist: the set was not completed")


class ObjectSets:
    """Sets below a prefix of a store.

    Parameters
    ----------
    where
        The run's prefix `snapshots`.
    """

    disk: Path | None = None

    def __init__(self, store: ObjectStore, where: Url) -> None:
        self._store, self.where = store, where
        self._attempts: dict[str, str] = {}  # of the sets that were begun here and are not complete

    def claim(self, set_id: str) -> bool:
        """See `SetStorage`. Always True: each attempt has a prefix of its own."""
        self._attempts[set_id] = runtime.random_bytes(8).hex()
        return True

    def place(self, set_id: str) -> Url:
        """See `SetStorage`."""
        attempt = self._attempts.get(set_id)
        return self.where / set_id / attempt if attempt else self.where / set_id

    def commit(self, set_id: str, job: str, state: dict[str, Any]) -> None:
        """See `SetStorage`. Reads the manifests, which are in the store then, and creates `set.json`."""
        attempt, url = self._attempts[set_id], self.where / set_id / COMMIT
        with _written():
            try:
                manifests = {
                    name: zlib.crc32(self._store.read(self.where / set_id / attempt / name)) for name in state["parts"]
                }
            except FileNotFoundError as error:
                raise WriteFailed(str(error)) from None
            own = {"set": set_id, "job": job, "attempt": attempt, "manifests": manifests}
            if not self._store.create(url, with_checksum(FORMAT, {**state, **own})):
                raise WriteFailed(f"{url}: another coordinator has completed this set")
        del self._attempts[set_id]

    def abort(self, set_id: str) -> None:
        """See `SetStorage`. What cannot be removed now is removed when the set is pruned."""
        attempt = self._attempts.pop(set_id, None)
        if attempt is not None:
            with suppress(Unavailable, StorageError):
                self._store.delete(self._store.list(self.where / set_id / attempt), below=self.where)

    def read(self, set_id: str) -> dict[str, Any]:
        """See `SetStorage`."""
        url = self.where / set_id / COMMIT
        return parse_checksummed(url, lambda: self._store.read(url), FORMAT)

    def complete(self) -> list[str]:
        """See `SetStorage`."""
        return [set_id for set_id, urls in self._listed().items() if self.where / set_id / COMMIT in urls]

    def started(self) -> list[str]:
        """See `SetStorage`. Of an attempt that has written nothing there is no trace, and its count is free."""
        return list(self._listed())

    def quarantine(self, set_id: str) -> None:
        """See `SetStorage`. Its `set.json` becomes `set.torn`, and its other objects stay until it is pruned."""
        url = self.where / set_id / COMMIT
        with suppress(FileNotFoundError):
            self._store.replace(self.where / set_id / TORN, self._store.read(url))
            self._store.delete([url])

    def prune(self, keep: int) -> None:
        """See `SetStorage`. Of each set `set.json` is removed first. What fails now is removed next time."""
        try:
            listed = self._listed()
            complete = [set_id for set_id, urls in listed.items() if self.where / set_id / COMMIT in urls]
            if len(complete) <= keep:
                return
            needed = {self.where / name for name in needed_by(self, complete[-keep:])}
            for set_id in list(listed)[: list(listed).index(complete[-keep])]:
                commit = self.where / set_id / COMMIT
                urls = sorted((url for url in listed[set_id] if url not in needed), key=lambda url: url != commit)
                self._store.delete(urls, below=self.where)
        except (Unavailable, StorageError, SnapshotError) as error:
            log.warning(f"old snapshot sets could not be removed, and are next time: {error}")

    def files_at(self, place: str) -> SetFiles | None:
        """See `SetStorage`."""
        url = Url(place)
        if not url.is_below(self.where):
            return None
        set_id, _, attempt = url[len(self.where) + 1 :].partition("/")
        return ObjectFiles(self._store, self.where / set_id, attempt or None)

    def files(self, set_id: str) -> SetFiles:
        """See `SetStorage`."""
        return ObjectFiles(self._store, self.where / set_id)

    def fetch(self, set_id: str, folder: Path) -> None:
        """Copy a complete set's files into a folder, in the form of `LocalSets`; what is missing is left out.

        Files of earlier sets that it needs are copied to their places beside that folder.
        """
        commit, content = self._store.read(self.where / set_id / COMMIT), self.read(set_id)
        (folder / COMMIT).write_bytes(commit)
        paths = {url: folder / url.name for url in self._store.list(self.where / set_id / content["attempt"])}
        paths |= {self.where / name: folder.parent / name for name in needed_by(self, [set_id])}
        for url, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError), self._store.open(url) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file, 8 << 20)

    def _listed(self) -> dict[str, list[Url]]:
        """The objects of each set that has any, oldest set first."""
        found: dict[str, list[Url]] = {}
        for url in self._store.list(self.where):
            set_id = url[len(self.where) + 1 :].partition("/")[0]
            if "-" in set_id and set_id.rpartition("-")[2].isdecimal():
                found.setdefault(set_id, []).append(url)
        return dict(sorted(found.items(), key=lambda one: count_of(one[0])))


def sets_at(where: Path | Url | str) -> SetStorage:
    """The snapshot sets in a folder, or below a URL."""
    return ObjectSets(connect(Url(where)), Url(where)) if is_url(where) else LocalSets(Path(where))
