"""The scripts of `examples/scripts`: a script of a job differs from the plain one in six lines at most.

With tables there is one more, which makes the modules of the rows.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
NAMES = sorted(path.stem.removesuffix("_job") for path in SCRIPTS.glob("*_job.py"))


def lines(name: str) -> list[str]:
    """Lines with text; an indentation is no change."""
    return [line.strip() for line in (SCRIPTS / f"{name}.py").read_text().splitlines() if line.strip()]


def test_there_are_four() -> None:
    assert NAMES == ["char_gpt", "dlrm", "mnist_cnn", "mnist_resnet"]


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_differ(name: str) -> None:
    changed = [line for line in difflib.ndiff(lines(name), lines(f"{name}_job")) if line.startswith("+ ")]
    tables = [line for line in changed if "dbelief.torch.EmbeddingBag(" in line]
    assert 0 < len(changed) - len(tables) <= 6, changed
    assert len(tables) <= 1, tables
