"""Temporary folders: removed with their process, or by a later one where it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dbelief.process.temporary_folder import LAUNCH, REGISTRY, lock_folder, remove_left, temporary_folder


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> None:
    os.utime(folder, (0, 0))


def test_it_is_removed_at_the_end(parent: Path) -> None:
    with temporary_folder() as folder:
        (folder / "address").write_text("127.0.0.1:1")
        aged(folder)
        remove_left(parent)  # of another process, which finds it locked
        assert folder.is_dir()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("prefix", [LAUNCH, REGISTRY])
def test_what_a_killed_process_has_left_is_removed_by_the_next(parent: Path, prefix: str) -> None:
    left, new, other = parent / f"{prefix}left", parent / f"{prefix}new", parent / "dbelief-of-a-user"
    for folder in (left, new, other):
        folder.mkdir()
        (folder / "file").write_text("x")
    aged(left)
    aged(other)
    (parent / f"{prefix}link").symlink_to(other)
    with temporary_folder():
        assert not left.exists()
        assert (new / "file").exists(), "its process may not have locked it yet"
    assert (other / "file").exists()


def test_the_lock_ends_with_its_process(parent: Path) -> None:
    folder = parent / f"{LAUNCH}1"
    folder.mkdir()
    text = (
        "import os, signal, sys; from pathlib import Path; from dbelief.process.temporary_folder import lock_folder\n"
        "lock_folder(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", text, str(folder)], check=False).returncode == -9
    held = lock_folder(parent / folder)
    remove_left(parent, older_s=0.0)
    assert folder.exists()
    os.close(held)
    remove_left(parent, older_s=0.0)
    assert not folder.exists()
