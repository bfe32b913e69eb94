"""Extras that some benchmarks need."""

from __future__ import annotations

import importlib.util


def needs_torch() -> None:
    """End the benchmark, saying so, where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        print("left out: torch is not installed")
        raise SystemExit(0)
