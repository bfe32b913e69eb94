from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import NotWritten
from dbelief.files import whole_file


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
    with whole_file(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half of two" * (1 // 0))
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_crash_left_behind_goes(tmp_path: Path) -> None:
    (tmp_path / "set.writing").write_bytes(b"longer than what comes now")
    with whole_file(tmp_path / "set.json") as file:
        file.write(b"{}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"set.json": b"{}"}


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_full_disk_is_named_and_leaves_nothing_behind(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")
    reason = rf"^{path}: cannot be written: {os.strerror(errno.EFBIG)}$"
    with files_end_at(size), pytest.raises(NotWritten, match=reason), whole_file(path) as file:
        file.writelines([bytes(10_000)] * 20)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {path.name: b"before"}


def test_a_disk_that_fails_only_when_it_must_be_safe_is_a_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NotWritten, match="No space left on device"), whole_file(tmp_path / "set.json") as file:
        file.write(b"{}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    reason = r"nowhere/set\.json: cannot be written: No such file"
    with pytest.raises(NotWritten, match=reason), whole_file(tmp_path / "nowhere" / "set.json"):
        pass
