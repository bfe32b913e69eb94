"""Output of benchmarks: progress and tables on standard error, one line of JSON on standard output."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]


def progress(row: dict[str, Any]) -> None:
    """Print the figures of one run as soon as they are known."""
    print(json.dumps(row), file=sys.stderr, flush=True)


def show(table: Table, figures: dict[str, Any], width: int | None = None) -> None:
    """Print the table, `width` columns wide or as wide as the terminal, and all figures."""
    Console(stderr=True, width=width).print(table)
    print_figures(figures)


def print_figures(figures: dict[str, Any]) -> None:
    """Print all figures as one line of JSON, with `measured`: the command, the day and the processor."""
    print(json.dumps({"measured": origin(own_command()), **figures}))


def origin(command: str) -> dict[str, Any]:
    """What a measurement file has of its origin: command, day, processor, cores, and commit."""
    return {
        "command": command,
        "day": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit that is checked out, with "+" where files differ from it; "" where this is no repository of Git."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+", "--abbrev=8"]
    if shutil.which("git") is None:
        return ""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def own_command() -> str:
    """The command of this process."""
    program = Path(sys.argv[0]).resolve()
    module = ".".join(program.relative_to(ROOT).with_suffix("").parts) if program.is_relative_to(ROOT) else program.name
    return " ".join(["python -m", module.removesuffix(".__main__"), *map(shlex.quote, sys.argv[1:])])


def _processor() -> str:
    """Model name of the processor as Linux reports it; "" where it does not."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def two_digits(values: list[float]) -> str:
    """Numbers of one cell, such as the accuracies of each seed."""
    return " ".join(f"{value:.2f}" for value in values)
