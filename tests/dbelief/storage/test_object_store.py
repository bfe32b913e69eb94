"""Objects of each kind of store: what is written is read, what exists is not created, what failed leaves nothing."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from dbelief.errors import StorageError, Unavailable, UserError, WriteFailed
from dbelief.storage import upload as uploads
from dbelief.storage.backends import FolderBackend, MemoryBackend, Multipart, Stat, StoreBackend
from dbelief.storage.failures import ObjectChanged
from dbelief.storage.object_store import ObjectStore, connect, disconnect
from dbelief.storage.probe import probe
from dbelief.url import Url, parse_url
from tests.threads import at_once

Place = tuple[ObjectStore, Url]
AWAY = r"cannot connect to http://127\.0\.0\.1:9"


def sizes(objects: ObjectStore, prefix: Url) -> dict[Url, int]:
    return {url: stat.size for url, stat in objects.list(prefix).items()}


def test_an_object_is_written_read_listed_and_deleted(store: Place) -> None:
    objects, prefix = store
    assert objects.list(prefix) == {}
    objects.replace(prefix / "a.json", b"one")
    objects.replace(prefix / "a.json", b"second")
    objects.replace(prefix / "b" / "c", b"")
    objects.replace(Url(f"{prefix}-beside") / "d", b"not below")
    assert objects.read(prefix / "a.json") == b"second"
    assert objects.read_range(prefix / "a.json", 2, 4) == b"co"
    assert sizes(objects, prefix) == {prefix / "a.json": 6, prefix / "b" / "c": 0}
    assert objects.list(prefix)[prefix / "a.json"] == objects.stat(prefix / "a.json")
    objects.delete([prefix / "a.json", prefix / "never"])
    assert sizes(objects, prefix) == {prefix / "b" / "c": 0}
    with pytest.raises(FileNotFoundError, match=r"a\.json: does not exist"):
        objects.read(prefix / "a.json")


def test_of_many_creations_at_once_one_succeeds(store: Place) -> None:
    objects, prefix = store
    created = at_once(lambda number: objects.create(prefix / "commit", b"%d" % number), range(8))
    (winner,) = np.flatnonzero(created)
    assert objects.read(prefix / "commit") == b"%d" % winner


@pytest.mark.parametrize("size", [0, 1, 1000, 6 << 20])
def test_an_upload_is_the_bytes_that_were_written(size: int, store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART", 5 << 20)  # the least that S3 takes
    objects, prefix = store
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with objects.upload(prefix / "part") as file:
        for start in range(0, size, 1_234_567):
            assert file.tell() == start
            file.write(content[start : start + 1_234_567].data)
    assert objects.read(prefix / "part") == content.tobytes()
    with objects.open(prefix / "part") as reader:
        reader.seek(size // 2)
        assert reader.read() == content[size // 2 :].tobytes()


def test_an_upload_that_fails_leaves_nothing(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART", 5 << 20)
    objects, prefix = store
    objects.replace(prefix / "part", b"before")

    def write() -> None:
        with objects.upload(prefix / "part") as file:
            file.write(bytes(11 << 20))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert sizes(objects, prefix) == {prefix / "part": 6}
    if prefix.scheme == "s3":
        import boto3

        client = boto3.client("s3")
        assert "Uploads" not in client.list_multipart_uploads(Bucket="bucket")
        client.close()


def test_an_upload_is_in_order(store: Place) -> None:
    objects, prefix = store
    with objects.upload(prefix / "x") as file:
        file.write(b"abc")
        with pytest.raises(ValueError, match="is written in order, at 3, not at 7"):
            file.seek(7)


class Faulty:
    """A backend in whose requests errors are planted, by the request's number; `after`: once it was carried out."""

    def __init__(self, errors: Mapping[int, Exception], after: bool = False) -> None:
        self.inner: StoreBackend = MemoryBackend()
        self.errors, self.after, self.requests = errors, after, 0

    def _planted(self, request: int) -> None:
        if (error := self.errors.get(request)) is not None:
            raise error

    address = "http://127.0.0.1:9"

    def read(self, url: Url, start: int | None = None, stop: int | None = None, tag: str = "") -> bytes:
        self.requests += 1
        self._planted(self.requests)
        return self.inner.read(url, start, stop, tag)

    def stat(self, url: Url) -> Stat:
        self.requests += 1
        self._planted(self.requests)
        return self.inner.stat(url)

    def write(self, url: Url, content: BytesIO, create: bool) -> None:
        self.requests += 1
        if self.after:
            self.inner.write(url, content, create)
        self._planted(self.requests)
        if not self.after:
            self.inner.write(url, content, create)

    def begin(self, url: Url) -> Multipart:
        return self.inner.begin(url)

    def list(self, prefix: Url) -> Mapping[Url, Stat]:
        return self.inner.list(prefix)

    def delete(self, urls: Iterable[Url], below: Url | None = None) -> None:
        self.inner.delete(urls, below)


class Hands:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def faulty(errors: Mapping[int, Exception], after: bool = False) -> tuple[ObjectStore, Faulty]:
    backend, hands = Faulty(errors, after), Hands()
    return ObjectStore(backend, 15.0, hands.sleep, lambda: hands.now_s), backend


def test_a_failure_that_passes_is_retried(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = parse_url(f"memory://{tmp_path_factory.mktemp('x').name}/a")
    objects, backend = faulty({1: ConnectionRefusedError(), 2: TimeoutError(), 3: OSError(16, "SlowDown")})
    objects.replace(url, b"content")
    assert (objects.read(url), backend.requests) == (b"content", 5)


def test_a_store_that_stays_away_is_named_after_the_deadline() -> None:
    objects, backend = faulty({number: ConnectionRefusedError() for number in range(2, 100)})
    objects.replace(parse_url("memory://x/a"), b"it answers once")
    with pytest.raises(Unavailable, match=rf"^memory://x/a: {AWAY} \(refused\), in 10 attempts$"):
        objects.read(parse_url("memory://x/a"))
    assert backend.requests == 11


def test_a_store_that_has_never_answered_is_named_soon() -> None:
    objects, backend = faulty({number: socket.gaierror(-2, "unknown") for number in range(100)})
    with pytest.raises(Unavailable, match=rf"^memory://x: {AWAY} \(unknown host\), in 4 attempts$"):
        objects.stat(parse_url("memory://x"))
    assert backend.requests == 4
    objects, backend = faulty({1: ConnectionRefusedError(), 2: PermissionError()})
    with pytest.raises(StorageError, match="access denied"):
        objects.stat(parse_url("memory://x"))
    backend.errors = dict.fromkeys(range(100), TimeoutError())
    with pytest.raises(Unavailable, match=r"timeout: no answer from http://127.0.0.1:9, in 10 attempts"):
        objects.stat(parse_url("memory://x"))


def test_an_object_that_was_written_again_is_not_read_on(store: Place) -> None:
    objects, prefix = store
    objects.replace(prefix / "a", b"0123456789")
    opened, later, found = objects.open(prefix / "a"), objects.open(prefix / "a"), objects.stat(prefix / "a")
    assert opened.read(3) == b"012"
    objects.replace(prefix / "a", b"abcdefghij")
    assert objects.stat(prefix / "a") != found
    with pytest.raises(ObjectChanged, match=r"/a: was written again while it was read$"):
        later.read()
    objects.replace(prefix / "a", b"abc")
    with pytest.raises(ObjectChanged, match=r"/a: was written again while it was read$"):
        objects.read_range(prefix / "a", 5, 8, found.tag)
    with pytest.raises(FileNotFoundError):
        objects.stat(prefix / "b")
    assert objects.exists(prefix / "a")
    assert not objects.exists(prefix)


def test_folders_that_become_empty_are_removed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    objects, prefix = ObjectStore(FolderBackend()), parse_url(f"file://{tmp_path}/store")
    for name in ("a/b/1", "a/b/2", "a/c/d/1"):
        objects.replace(prefix / name, b"")
    objects.delete([prefix / "a/b/1", prefix / "a/c/d/1"], below=prefix / "a")
    assert sorted(path.name for path in (tmp_path / "store").rglob("*")) == ["2", "a", "b"]
    objects.delete([prefix / "a/b/2"], below=prefix)
    assert list((tmp_path / "store").rglob("*")) == []
    assert (tmp_path / "store").exists()


def test_a_refusal_is_not_retried_and_shows_nothing_of_the_library() -> None:
    objects, backend = faulty({1: PermissionError("AKIAQUIETLY never/to/be/shown")})
    with pytest.raises(StorageError, match=r"^memory://x/a: access denied$"):
        objects.replace(parse_url("memory://x/a"), b"")
    assert backend.requests == 1
    objects, _ = faulty({1: OSError(28, "No space left on device")})
    with pytest.raises(StorageError, match=r"^memory://x/a: the store is full$"):
        objects.replace(parse_url("memory://x/a"), b"")


def test_a_full_store_is_not_retried_though_it_says_that_it_is_busy() -> None:
    class Refused(Exception):
        response: ClassVar = {"Error": {"Code": "XMinioStorageFull"}, "ResponseMetadata": {"HTTPStatusCode": 503}}

    objects, backend = faulty({1: Refused()})
    with pytest.raises(StorageError, match=r"^memory://x/a: the store is full$"):
        objects.replace(parse_url("memory://x/a"), b"")
    assert backend.requests == 1


def test_a_full_disk_below_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise WriteFailed(f"{path}: cannot be written") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dbelief.storage.backends.write_whole", full)
    url = parse_url(f"file://{tmp_path}/a")
    with pytest.raises(StorageError, match=rf"^{url}: the store is full$"):
        ObjectStore(FolderBackend()).replace(url, b"content")


def test_a_fork_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    url, here = parse_url("memory://x"), os.getpid()
    store = connect(url)
    assert connect(url) is store
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    assert connect(url) is not store
    disconnect()


def test_a_creation_whose_answer_was_lost_counts(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = parse_url(f"memory://{tmp_path_factory.mktemp('x').name}/commit")
    objects, _ = faulty({1: ConnectionResetError()}, after=True)
    assert objects.create(url, b"of attempt 17a3")
    assert not objects.create(url, b"of attempt 99b2")


def test_a_probe_leaves_nothing(store: Place) -> None:
    objects, prefix = store
    probe(objects, prefix)
    assert objects.list(prefix) == {}


def test_a_store_without_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, prefix = MemoryBackend(), parse_url("memory://without/conditions")
    write = backend.write
    monkeypatch.setattr(backend, "write", lambda url, content, create: write(url, content, create=False))
    with pytest.raises(
        UserError,
        match=r"^memory://without/conditions: does not create objects conditionally \(If-None-Match\), so two "
        "coordinators could commit one set$",
    ):
        probe(ObjectStore(backend), prefix)
    assert backend.list(prefix) == {}


@pytest.mark.parametrize("there", ["it", "nothing", "another"])
def test_an_upload_whose_last_answer_was_lost(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are gone then, as they are where the store has removed them; an earlier object may have its name."""
    backend, url = MemoryBackend(), parse_url(f"memory://lost/{there}/part")
    if there == "another":
        backend.write(url, BytesIO(b"an earlier one"), create=False)

    class Lost:
        attempts = 0

        def __init__(self) -> None:
            self.inner = MemoryBackend.begin(backend, url)

        def send(self, number: int, part: BytesIO) -> None:
            self.inner.send(number, part)

        def complete(self) -> None:
            self.attempts += 1
            if self.attempts > 1 or there != "it":
                raise FileNotFoundError
            self.inner.complete()
            raise ConnectionResetError

        def abort(self) -> None:
            raise FileNotFoundError

    monkeypatch.setattr(backend, "begin", lambda url: Lost())
    objects = ObjectStore(backend, 15.0, lambda seconds: None)

    def write() -> None:
        with objects.upload(url) as file:
            file.write(b"content")

    if there == "it":
        write()
        assert objects.read(url) == b"content"
        return
    with pytest.raises(StorageError, match=r"part: its parts were removed before they were an object$"):
        write()
    assert objects.exists(url) == (there == "another")
