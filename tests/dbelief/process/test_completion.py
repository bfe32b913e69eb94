"""What a shell completes: click's own protocol, with the words of a command line."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from dbelief.cli.main import main


def completed(*words: str) -> list[tuple[str, str]]:
    """Kinds and values for the last word."""
    *before, last = words
    items = ShellComplete(main, {}, "dbelief", "_DBELIEF_COMPLETE").get_completions(before, last)
    return [(item.type, item.value) for item in items]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.yaml", "b.yml", "notes.txt", "examples/digits.yaml", ".hidden/c.yaml", "runs/digits/job.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "runs" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [["train"], ["job", "check"], ["sweep"], ["compare"], ["plan"]])
def test_job_files(command: list[str]) -> None:
    assert completed(*command, "") == [("plain", name) for name in ("a.yaml", "b.yml", "examples/digits.yaml")]
    assert completed(*command, "ex") == [("plain", "examples/digits.yaml")]
    assert completed(*command, "examples/d") == [("plain", "examples/digits.yaml")]
    assert completed(*command, ".h") == [("plain", ".hidden/c.yaml")]


@pytest.mark.parametrize("command", ["status", "top", "stop", "report", "evaluate", "predict", "export"])
def test_run_folders(command: str) -> None:
    assert completed(command, "") == [("plain", "runs/digits")]
    assert completed(command, "runs/") == [("plain", "runs/digits")]
    assert completed("scale", "workers", "3", "ru") == [("plain", "runs/digits")]


def test_absolute_paths(folder: Path) -> None:
    assert completed("status", f"{folder}/runs/di") == [("plain", f"{folder}/runs/digits")]


def test_the_shell_completes_what_is_neither() -> None:
    assert completed("train", "elsewhere/x") == [("file", "elsewhere/x")]
    assert completed("status", "nothing") == [("dir", "nothing")]


def test_commands_options_and_topics() -> None:
    assert ("plain", "train") in completed("tr")
    assert ("plain", "--resume") in completed("train", "--re")
    assert completed("help", "sandb") == [("plain", "sandblaster")]
    assert completed("help", "coord") == [("plain", "coordinator")]
