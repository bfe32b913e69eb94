"""The scripts of `examples/scripts`: a script of a job differs from the plain one in six lines at most."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
NAMES = sorted(path.stem.removesuffix("_job") for path in SCRIPTS.glob("*_job.py"))


def lines(name: str) -> list[str]:
    """Lines with text; an indentation is no change."""
    return [line.strip() for line in (SCRIPTS / f"{name}.py").read_text().splitlines() if line.strip()]


def test_there_are_three() -> None:
    assert NAMES == ["char_gpt", "mnist_cnn", "mnist_resnet"]


@pytest.mark.parametrize("name", NAMES)
def test_six_lines_differ(name: str) -> None:
    changed = [line for line in difflib.ndiff(lines(name), lines(f"{name}_job")) if line.startswith("+ ")]
    assert 0 < len(changed) <= 6, changed
