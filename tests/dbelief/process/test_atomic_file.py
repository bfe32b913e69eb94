from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from dbelief.errors import WriteFailed
from dbelief.process.atomic_file import Disk, atomic_write, sweep, use_disk, why_unwritable, write_whole
from dbelief.process.runtime import Runtime, use_runtime


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes: what a full disk looks like to the one who writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    with atomic_write(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"half of two" * (1 // 0))
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_crash_leftovers_are_swept(tmp_path: Path) -> None:
    run = tmp_path / "run" / "snapshots"
    run.mkdir(parents=True)
    (run / ".dbelief-0123456789abcdef.writing").write_bytes(b"of a writer that died")
    with atomic_write(run / "set.json") as file:
        file.write(b"{}")
        sweep(tmp_path / "run")  # while a writer is at work
    assert contents(run) == {"set.json": b"{}"}


def test_files_of_other_names_stay(tmp_path: Path) -> None:
    kept = {"model.writing": b"a person's", "a.npz": b"", ".dbelief-notes.writing": b"too"}
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    write_whole(tmp_path / "model.npz", b"new")
    sweep(tmp_path)
    assert contents(tmp_path) == {**kept, "model.npz": b"new"}


def test_writer_swept_before_its_lock_retries(tmp_path: Path) -> None:
    class Swept(Disk):
        created = 0

        def create(self, path: Path) -> BinaryIO:
            file = super().create(path)
            self.created += 1
            if self.created == 1:
                sweep(tmp_path)
            return file

    disk = Swept()
    with use_disk(disk), atomic_write(tmp_path / "set.json") as file:
        file.write(b"{}")
    assert (contents(tmp_path), disk.created) == ({"set.json": b"{}"}, 2)


class Unvaried(Runtime):
    def random_bytes(self, length: int) -> bytes:
        return bytes(length)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"a person's")
    (tmp_path / f".dbelief-{'0' * 16}.writing").symlink_to("other")
    with use_runtime(Unvaried()), pytest.raises(WriteFailed, match=r"model\.npz: cannot be written: File exists"):
        write_whole(tmp_path / "model.npz", b"new")
    assert (tmp_path / "other").read_bytes() == b"a person's"
    assert (tmp_path / f".dbelief-{'0' * 16}.writing").is_symlink()


def test_two_writers_of_one_path_both_write_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    with atomic_write(path) as one:
        one.write(b"one")
        with atomic_write(path) as two:
            two.write(b"two, longer")
        assert path.read_bytes() == b"two, longer"
        one.write(b", and more")
    assert contents(tmp_path) == {path.name: b"one, and more"}


def test_content_is_synced_before_rename_and_folder_after(tmp_path: Path) -> None:
    steps: list[str] = []

    class Noted(Disk):
        def sync(self, file: BinaryIO) -> None:
            super().sync(file)
            steps.append("content")

        def rename(self, temporary: Path, path: Path) -> None:
            super().rename(temporary, path)
            steps.append("name")

        def sync_folder(self, folder: Path) -> None:
            super().sync_folder(folder)
            steps.append("folder")

    with use_disk(Noted()), atomic_write(tmp_path / "set.json") as file:
        file.write(b"{}")
    assert steps == ["content", "name", "folder"]


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_full_disk_is_named_and_leaves_nothing_behind(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")
    reason = rf"^{path}: cannot be written: {os.strerror(errno.EFBIG)}$"
    with files_end_at(size), pytest.raises(WriteFailed, match=reason), atomic_write(path) as file:
        file.writelines([bytes(10_000)] * 20)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {path.name: b"before"}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    reason = r"nowhere/set\.json: cannot be written: No such file"
    with pytest.raises(WriteFailed, match=reason), atomic_write(tmp_path / "nowhere" / "set.json"):
        pass


def test_a_folder_without_room_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_unwritable(tmp_path) == ""
    assert why_unwritable(tmp_path / "there") == f"{tmp_path}/there: No such file or directory"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert why_unwritable(tmp_path) == f"{tmp_path}: No space left on device"
    assert list(tmp_path.iterdir()) == []
