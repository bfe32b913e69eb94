"""This checkout, and the command that runs one of its benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def command(script: str) -> list[str]:
    """The command that runs the script at this path (its `__file__`); it needs `ROOT` as its working directory."""
    return [sys.executable, "-m", ".".join(Path(script).resolve().relative_to(ROOT).with_suffix("").parts)]
