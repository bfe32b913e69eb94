"""The file of the latest of something: written once a second at most, and at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.monitoring.latest_file import ThrottledJsonFile
from dbelief.errors import WriteFailed
from dbelief.process.clock import ManualClock
from dbelief.rundir.folder import LAST_PASS


def written(folder: Path) -> Any:
    path = folder / LAST_PASS
    return json.loads(path.read_text())["number"] if path.exists() else None


def test_it_is_written_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    last = ThrottledJsonFile(tmp_path / LAST_PASS, clock)
    last.flush(at_once=True)
    assert written(tmp_path) is None
    seen = []
    for number in range(1, 6):
        last.update({"number": number, "loss": float("nan"), "runs": [[0, 1, 0, 4, False, 0.0, 0.5, True]]})
        last.flush()
        seen.append(written(tmp_path))
        clock.advance(0.4)
    assert seen == [1, 1, 1, 4, 4]
    last.flush(at_once=True)
    assert written(tmp_path) == 5
    assert json.loads((tmp_path / LAST_PASS).read_text())["loss"] is None


def test_unchanged_file_is_not_rewritten(tmp_path: Path) -> None:
    last = ThrottledJsonFile(tmp_path / LAST_PASS, ManualClock())
    last.update({"number": 1})
    last.flush()
    (tmp_path / LAST_PASS).unlink()
    last.flush(at_once=True)
    assert written(tmp_path) is None


def test_a_disk_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    last = ThrottledJsonFile(tmp_path / "missing" / LAST_PASS, ManualClock())
    last.update({"number": 1})
    with pytest.raises(WriteFailed, match=r"last_pass\.json: cannot be written"):
        last.flush()
