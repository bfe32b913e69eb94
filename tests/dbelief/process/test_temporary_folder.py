"""Temporary folders: removed with their process, or by a later start where it was killed; what people made stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dbelief.process.temporary_folder import (
    LAUNCH,
    MARK,
    REGISTRY,
    RUN,
    hold_folder,
    keep_folder,
    make_folder,
    remove_left,
    temporary_folder,
)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def killed(lock: int) -> None:
    """As the kernel does with the files of a process that was killed."""
    os.close(lock)


def test_it_is_removed_at_the_end(parent: Path) -> None:
    with temporary_folder() as folder:
        (folder / "address").write_text("127.0.0.1:1")
        remove_left(parent)  # of another process, which finds it locked
        assert (folder / "address").exists()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("prefix", [LAUNCH, REGISTRY, RUN])
def test_what_a_killed_process_has_left_is_removed_by_the_next(parent: Path, prefix: str) -> None:
    left, lock = make_folder(prefix)
    (left / "file").write_text("x")
    going_on, _ = make_folder(prefix)
    killed(lock)
    with temporary_folder() as own:
        assert sorted(parent.iterdir()) == sorted([going_on, own])


@pytest.mark.usefixtures("parent")
def test_what_could_not_be_uploaded_is_kept() -> None:
    folder, lock = make_folder(RUN)
    (folder / "model.safetensors").write_bytes(b"values")
    keep_folder(folder)
    killed(lock)
    make_folder(RUN)
    assert (folder / "model.safetensors").exists()


def test_what_others_made_stays(parent: Path) -> None:
    own, elsewhere = parent / f"{RUN}notes", parent / "elsewhere"
    own.mkdir()
    (parent / f"{RUN}file").write_text("a file")
    elsewhere.mkdir()
    (elsewhere / MARK).touch()
    (parent / f"{RUN}link").symlink_to(elsewhere)
    make_folder(RUN)
    assert own.exists()
    assert (parent / f"{RUN}file").exists()
    assert (elsewhere / MARK).exists()


@pytest.mark.usefixtures("parent")
def test_a_folder_is_private() -> None:
    folder, _ = make_folder(LAUNCH)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_lock_ends_with_its_process(parent: Path) -> None:
    folder = parent / f"{LAUNCH}1"
    folder.mkdir()
    text = (
        "import os, signal, sys; from pathlib import Path; from dbelief.process.temporary_folder import hold_folder\n"
        "hold_folder(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", text, str(folder)], check=False).returncode == -9
    another = parent / f"{LAUNCH}2"
    another.mkdir()
    held = hold_folder(another)
    assert not folder.exists()
    remove_left(parent)
    assert another.exists()
    os.close(held)
    remove_left(parent)
    assert not another.exists()
