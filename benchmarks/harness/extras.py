"""Extras that some benchmarks need."""

from __future__ import annotations

import importlib.util
import sys


def needs_torch() -> None:
    """End the benchmark, saying so, where torch is not installed."""
    _needs("torch")


def needs_s3() -> None:
    """End the benchmark, saying so, where s3fs, or moto's server, is not installed."""
    _needs("s3fs", "moto", "flask")


def has_torchft() -> bool:
    """Whether torchft is installed beside torch; where not, say that its ways are left out."""
    if found := importlib.util.find_spec("torchft") is not None:
        return found
    print("left out: the ways of torchft, which is not installed", file=sys.stderr)
    return False


def _needs(*modules: str) -> None:
    for name in modules:
        if importlib.util.find_spec(name) is None:
            print(f"left out: {name} is not installed")
            raise SystemExit(0)
