"""Commands that run seeds, in an interpreter with fixed hashes: a seed decides the order of sets, too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).parents[2]
FIXED = {"PYTHONHASHSEED": "0"}
TIMEOUT_S = 900.0


def fix_hashes(module: str, words: Sequence[str]) -> None:
    """Start this program again where its hashes are not fixed; `words`: its arguments."""
    if os.environ.items() >= FIXED.items():
        return
    os.execve(sys.executable, [sys.executable, "-m", module, *words], {**os.environ, **FIXED})


def run_command(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command from the project's folder to its end.

    Raises
    ------
    subprocess.TimeoutExpired
        It takes longer than `TIMEOUT_S`.
    """
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **FIXED},
    )
