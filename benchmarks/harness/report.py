"""Output of benchmarks: progress and tables on standard error, one line of JSON on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table


def progress(row: dict[str, Any]) -> None:
    """Print the figures of one run as soon as they are known."""
    print(json.dumps(row), file=sys.stderr, flush=True)


def show(table: Table, figures: dict[str, Any], width: int | None = None) -> None:
    """Print the table, `width` columns wide or as wide as the terminal, and all figures."""
    Console(stderr=True, width=width).print(table)
    print(json.dumps(figures))


def two_digits(values: list[float]) -> str:
    """Numbers of one cell, such as the accuracies of each seed."""
    return " ".join(f"{value:.2f}" for value in values)
