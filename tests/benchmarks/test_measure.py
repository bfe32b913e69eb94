"""`make measure`: the command of a file is run, compared with the file, and the file and its pages are written anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure
from docs.generators import measurements, results

PAGE = "# A page\n\n<!-- table: echo -->\n<!-- end -->\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path


def _write(folder: Path, command: str, **more: Any) -> None:
    found = {
        "measured": {"command": command, "day": "2026-01-02", "processor": "old", "cores": 1, "commit": "0"},
        "figures": {"rows": [{"way": "a", "ms": 10.0}]},
        "tables": {"": {"columns": [["way", "{way}"], ["ms", "{ms:.1f}", "10 %"]]}},
        **more,
    }
    (folder / "echo.json").write_text(json.dumps(found))


def _command(ms: float) -> str:
    figures = json.dumps({"measured": {}, "rows": [{"way": "a", "ms": ms}]})
    return f"echo progress >&2; echo '{figures}'"


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["measure", *arguments])
    return measure.main()


def test_file_and_page_are_written_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(folder, _command(10.5))
    assert _run(monkeypatch, "echo") == 0
    found = json.loads((folder / "echo.json").read_text())
    assert found["figures"] == {"rows": [{"way": "a", "ms": 10.5}]}
    assert found["measured"]["command"] == _command(10.5)
    assert found["measured"]["day"] > "2026-01-02"
    assert found["tables"][""]["columns"][1] == ["ms", "{ms:.1f}", "10 %"]
    assert "| a | 10.5 |" in (folder / "page.md").read_text()


def test_a_figure_beyond_its_spread_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(folder, _command(12.0))
    before = (folder / "echo.json").read_text()
    assert _run(monkeypatch, "echo", "--check") == 1
    printed = capsys.readouterr()
    assert "NO" in printed.err
    assert json.loads(printed.out) == {"rows": [{"subject": "echo", "numbers": 1, "within": 0, "used": 2.0}]}
    assert (folder / "echo.json").read_text() == before
    assert (folder / "page.md").read_text() == PAGE


@pytest.mark.parametrize(
    ("command", "more", "line"),
    [
        ("exit 3", {}, "echo: exit code 3"),
        ("echo nothing", {}, "echo: the output has no line of JSON"),
        ("sleep 60; true", {"minutes": 0.001}, "timed out after 0.24 seconds"),
        ("true", {"needs": ["A_FOLDER_OF_DATA"]}, "echo: needs the environment variable A_FOLDER_OF_DATA"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_changes_nothing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    more: dict[str, Any],
    line: str,
) -> None:
    _write(folder, command, **more)
    before = (folder / "echo.json").read_text()
    assert _run(monkeypatch, "echo") == 1
    printed = capsys.readouterr()
    assert line in printed.err
    assert json.loads(printed.out) == {"rows": [{"subject": "echo", "numbers": 0, "within": 0, "used": None}]}
    assert (folder / "echo.json").read_text() == before


def test_subjects_are_listed_and_an_unknown_one_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(folder, "true", minutes=7)
    assert _run(monkeypatch) == 0
    assert capsys.readouterr().out.split() == ["echo", "7", "min", "true"]
    with pytest.raises(SystemExit, match="2"):
        _run(monkeypatch, "ecco")
    assert "no subject 'ecco'; there are echo" in capsys.readouterr().err
