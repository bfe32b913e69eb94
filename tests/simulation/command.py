"""Commands that run seeds, in an interpreter with fixed hashes: a seed decides the order of sets, too."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).parents[2]
FIXED = {"PYTHONHASHSEED": "0"}
TIMEOUT_S = 900.0


def seed_options(module: str, about: str | None, seeds: int, jobs: Sequence[str]) -> argparse.ArgumentParser:
    """A parser with the options of a command that runs seeds; `seeds`: how many by default."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--seeds", type=int, default=seeds, help=f"how many to run ({seeds})")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--job", action="append", default=[], choices=jobs, help="of these jobs only; repeatable")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="processes (one a core)")
    parser.add_argument("--results", type=Path, help="file of results: seeds in it are not run again")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    return parser


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
