"""Processes that run the script again do not join, and loaders that would start such are refused before."""

from __future__ import annotations

import multiprocessing
import os
import runpy
from pathlib import Path

import pytest

from dbelief.errors import UserError
from dbelief.script import main_guard
from dbelief.script.main_guard import check_first_run, check_start_method

CALL = "from dbelief.script.main_guard import check_first_run, unguarded_line\n"


def run(folder: Path, text: str, name: str = "__main__") -> dict[str, object]:
    script = folder / "script.py"
    script.write_text(CALL + text)
    return runpy.run_path(str(script), run_name=name)


@pytest.fixture(autouse=True)
def _nobody_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_guard, "_joined", 0)


def test_a_script_that_is_imported_by_a_loaders_process_does_not_join(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"started runs the script again: put what trains, .* `if __name__ == \"__main"):
        run(tmp_path, "def train():\n    check_first_run()\n\n\ntrain()\n", "__mp_main__")
    later = run(tmp_path, "def train():\n    check_first_run()\n", "__mp_main__")["train"]
    assert callable(later)
    later()  # a process of the user's own, which joins in its function


def test_a_fork_of_a_process_that_has_joined_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    check_first_run()
    check_first_run()
    monkeypatch.setattr(main_guard, "_joined", os.getpid() + 1)
    with pytest.raises(UserError, match="this process was forked by process"):
        check_first_run()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("found = unguarded_line()\n", 2),
        ("def train():\n    return unguarded_line()\n\n\nfound = train()\n", 6),
        ("if True:\n    found = unguarded_line()\n", 3),
        ('if __name__ == "__main__":\n    found = unguarded_line()\n', 0),
        ('if "__main__" == __name__ and CALL:\n    for _ in range(1):\n        found = unguarded_line()\n', 0),
    ],
)
def test_the_line_that_each_import_would_run(text: str, line: int, tmp_path: Path) -> None:
    assert run(tmp_path, "CALL = 1\n" * ("CALL" in text) + text)["found"] == line


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_only_a_forked_process_of_a_loader_goes_without_a_guard(method: str) -> None:
    context = multiprocessing.get_context(method)
    with pytest.raises(UserError, match=rf"line 8 of the script is run by each import of it, .* \({method}\) runs"):
        check_start_method(context, 8)
    check_start_method(context, 0)
    check_start_method(multiprocessing.get_context("fork"), 8)
