"""Objects that are fetched whole: once for all, within a bound, and again where they were written again."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from dbelief.data.files import object_cache
from dbelief.data.files.data_file import DataFile, file_at
from dbelief.data.files.object_ranges import read_range
from dbelief.errors import DataError, Unavailable
from dbelief.storage.object_store import connect
from dbelief.url import Url
from tests.threads import at_once

CONTENT = bytes(range(250)) * 4


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Url:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(object_cache, "BLOCK", 100)
    return Url(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that are read of objects."""
    made, read = list[tuple[int, int]](), read_range

    def counted(url: Url, start: int, stop: int, tag: str) -> bytes:
        made.append((start, stop))
        return read(url, start, stop, tag)

    monkeypatch.setattr(object_cache, "read_range", counted)
    return made


def put(url: Url, content: bytes = CONTENT) -> DataFile:
    connect(url).replace(url, content)
    return file_at(url)


def whole(file: DataFile) -> bytes:
    with file.open_whole() as opened:
        return opened.read()


def kept(folder: Path) -> list[Path]:
    return [path for path in (folder / "dbelief" / "objects").iterdir() if not path.name.startswith(".")]


def test_an_object_is_fetched_once_for_all(prefix: Url, requests: list[tuple[int, int]], tmp_path: Path) -> None:
    assert at_once(whole, [put(prefix / "a")] * 6) == [CONTENT] * 6
    assert requests == [(start, start + 100) for start in range(0, 1000, 100)]
    (path,) = kept(tmp_path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_an_empty_object_is_one(prefix: Url) -> None:
    assert whole(put(prefix / "a", b"")) == b""


def test_what_has_come_is_not_fetched_again(prefix: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    file, made = put(prefix / "a"), list[int]()

    def away(url: Url, start: int, stop: int, tag: str) -> bytes:
        made.append(start)
        if start == 700 and made.count(700) == 1:
            raise Unavailable(f"{url}: away")
        return read_range(url, start, stop, tag)

    monkeypatch.setattr(object_cache, "read_range", away)
    with pytest.raises(Unavailable, match="away"):
        file.open_whole()
    assert whole(file) == CONTENT
    assert made == [*range(0, 800, 100), *range(700, 1000, 100)]


def test_an_object_that_was_written_again_is_another(
    prefix: Url, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = put(prefix / "a")
    assert whole(file) == CONTENT
    again = put(prefix / "a", CONTENT[::-1])
    assert whole(again) == CONTENT[::-1]
    assert whole(file) == CONTENT, "it is kept: a job that began with it goes on with it"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(DataError, match=r"/a: was written again after the job began$"):
        file.open_whole()
    with file.open() as opened, pytest.raises(DataError, match=r"/a: was written again after the job began$"):
        opened.read()
    connect(prefix).delete([prefix / "a"])
    with pytest.raises(DataError, match=r"/a: was removed after the job began$"):
        file.open_whole()
    with pytest.raises(DataError, match=r"/a: there is no such object$"):
        file_at(prefix / "a")


def test_objects_take_no_more_than_the_bound(
    prefix: Url, requests: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(object_cache.SETTING, str(3500 / 2**30))
    files = [put(prefix / name, name.encode() * 1000) for name in "abcd"]
    with files[1].open_whole():
        for number, file in enumerate(files[:3]):
            with file.open_whole() as opened:
                os.utime(opened.name, (number, number))
        whole(files[0])  # it is used again: b is the oldest, and open, so that c goes
        whole(files[3])
        assert sum(path.stat().st_size for path in kept(tmp_path)) <= 3500
        requests.clear()
        whole(files[0])
        whole(files[1])
        assert requests == []
        whole(files[2])
        assert len(requests) == 10


def test_objects_that_do_not_fit_are_refused(prefix: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(object_cache.SETTING, str(1500 / 2**30))
    with put(prefix / "a").open_whole():
        with pytest.raises(DataError) as caught:
            put(prefix / "b").open_whole()
        assert str(caught.value) == (
            f"{prefix}/b: 1,000 bytes do not fit among the kept objects, 1,500 bytes, of which 1,000 are in use: "
            "set DBELIEF_CACHE_GIB higher, or give the data as files"
        )
    assert whole(file_at(prefix / "b")) == CONTENT, "a is closed, and goes"
    for wrong in ("much", "0", "-1", "nan"):
        monkeypatch.setenv(object_cache.SETTING, wrong)
        with pytest.raises(DataError, match=r"^DBELIEF_CACHE_GIB: must be a number of GiB above 0, not '"):
            put(prefix / "c", wrong.encode()).open_whole()


def test_a_folder_that_cannot_be_written_is_named(prefix: Url, tmp_path: Path) -> None:
    (tmp_path / "dbelief").write_bytes(b"")
    with pytest.raises(DataError, match=rf"/a: cannot be kept in {tmp_path}/dbelief/objects: not a directory$"):
        put(prefix / "a").open_whole()
