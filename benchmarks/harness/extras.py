"""Extras that some benchmarks need."""

from __future__ import annotations

import importlib.util


def needs_torch() -> None:
    """End the benchmark, saying so, where torch is not installed."""
    _needs("torch")


def needs_s3() -> None:
    """End the benchmark, saying so, where s3fs, or moto's server, is not installed."""
    _needs("s3fs", "moto", "flask")


def _needs(*modules: str) -> None:
    for name in modules:
        if importlib.util.find_spec(name) is None:
            print(f"left out: {name} is not installed")
            raise SystemExit(0)
