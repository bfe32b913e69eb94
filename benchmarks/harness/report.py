"""Output of benchmarks: progress and tables on standard error, one line of JSON on standard output."""

from __future__ import annotations

import json
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def progress(row: dict[str, Any]) -> None:
    """Print the figures of one run as soon as they are known."""
    print(json.dumps(row), file=sys.stderr, flush=True)


def show(table: Table, figures: dict[str, Any], width: int | None = None) -> None:
    """Print the table, `width` columns wide or as wide as the terminal, and all figures."""
    Console(stderr=True, width=width).print(table)
    print_figures(figures)


def print_figures(figures: dict[str, Any]) -> None:
    """Print all figures as one line of JSON, with `measured`: the command, the day and the processor."""
    print(json.dumps({"measured": origin(), **figures}))


def origin() -> dict[str, Any]:
    """The command of this process, the day, and the processor."""
    program, root = Path(sys.argv[0]).resolve(), Path(__file__).parents[2]
    module = ".".join(program.relative_to(root).with_suffix("").parts) if program.is_relative_to(root) else program.name
    module = module.removesuffix(".__main__")
    arguments = [shlex.quote(argument) for argument in sys.argv[1:]]
    return {
        "command": " ".join(["python -m", module, *arguments]),
        "day": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    """Model name of the processor as Linux reports it; "" where it does not."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def two_digits(values: list[float]) -> str:
    """Numbers of one cell, such as the accuracies of each seed."""
    return " ".join(f"{value:.2f}" for value in values)
