"""Folders of processes that were killed are removed by the next start; those of living ones, and of people, stay."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from dbelief.rundir.stored.work_folder import MARK, keep_work_folder, make_work_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed(descriptor: int) -> None:
    """As the kernel does with the files of a process that was killed."""
    os.close(descriptor)


def test_a_folder_whose_process_was_killed_is_removed_by_the_next_start(temporary: Path) -> None:
    first, lock = make_work_folder("job")
    (first / "events.jsonl").write_text("{}")
    second, _ = make_work_folder("another")
    assert first.exists(), "its process lives"
    killed(lock)
    third, _ = make_work_folder("job")
    assert sorted(temporary.iterdir()) == sorted([second, third])


def test_what_could_not_be_uploaded_is_kept() -> None:
    folder, lock = make_work_folder("job")
    (folder / "model.safetensors").write_bytes(b"values")
    keep_work_folder(folder)
    killed(lock)
    make_work_folder("job")
    assert (folder / "model.safetensors").exists()


def test_what_others_made_stays(temporary: Path) -> None:
    own = temporary / "dbelief-run-notes"
    own.mkdir()
    (temporary / "dbelief-run-file").write_text("a file")
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / MARK).touch()
    (temporary / "dbelief-run-link").symlink_to(elsewhere)
    make_work_folder("job")
    assert own.exists()
    assert (temporary / "dbelief-run-file").exists()
    assert (elsewhere / MARK).exists()


def test_a_folder_is_private() -> None:
    folder, _ = make_work_folder("job")
    assert folder.stat().st_mode & 0o777 == 0o700
