"""Pictures of a run folder, and reasons that prevent them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from dbelief.errors import DataError, WriteFailed
from dbelief.tools.report.pictures import draw_pictures

PASS: dict[str, Any] = {
    "number": 1, "iteration": 1, "bundles": 1, "portions": 1, "samples": 5, "seconds": 0.5, "launched": 0, "won": 0,
    "runs": [[0, 1, 0, 1, False, 0.0, 0.5, True]],
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, saved: list[Figure]) -> Path:
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "events.jsonl").write_text("")
    return folder


def test_only_a_batch_method_has_a_picture_of_its_last_pass(run: Path, tmp_path: Path) -> None:
    assert draw_pictures(run, run, "mnist") == [run / "curves.png"]
    (run / "last_pass.json").write_text(json.dumps(PASS))
    output = tmp_path / "somewhere" / "else"
    assert draw_pictures(run, output, "mnist") == [output / "curves.png", output / "last_pass.png"]
    assert all(path.is_file() for path in output.iterdir())
    assert not (run / "last_pass.png").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_pass_that_cannot_be_read_is_named(run: Path, text: str) -> None:
    (run / "last_pass.json").write_text(text)
    with pytest.raises(DataError, match=r"last_pass\.json: "):
        draw_pictures(run, run, "mnist")


def test_a_folder_that_cannot_be_made_is_one_line(run: Path) -> None:
    with pytest.raises(WriteFailed, match=r"events\.jsonl/x: the pictures cannot be written: Not a directory"):
        draw_pictures(run, run / "events.jsonl" / "x", "mnist")


DRAW = """
import os, sys
from pathlib import Path
from dbelief.tools.report.pictures import draw_pictures, load_drawing_code
from dbelief.tools.experiments.sweep import runs
load_drawing_code()
assert os.environ["MPLBACKEND"] == sys.argv[2], "it is the user's again"
print(*draw_pictures(Path(sys.argv[1]), Path(sys.argv[1]), "a notebook"))
"""


def test_a_notebooks_backend_is_not_needed(tmp_path: Path) -> None:
    """A cell's commands have it in their environment, and not in their own."""
    (tmp_path / "events.jsonl").write_text("")
    backend = "module://no_such_package.backend_inline"
    done = subprocess.run(
        [sys.executable, "-c", DRAW, str(tmp_path), backend],
        env={**os.environ, "MPLBACKEND": backend},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.split()) == (0, [f"{tmp_path}/curves.png"]), done.stderr
