"""A small job, of which a test writes only what it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbelief.job import Job, build_job

SGD: dict[str, Any] = {"name": "downpour", "rule": {"name": "sgd", "rate": 0.1}}
CLASSES: dict[str, Any] = {
    "source": "synthetic",
    "kind": "classes",
    "samples": 50,
    "features": 3,
    "classes": 2,
    "noise": 0.1,
}


def small_job(folder: Path = Path("/nonexistent"), where: str = "job", **fields: Any) -> Job:
    """A job of one layer on the digits, with these fields in place of its own."""
    plain = {
        "name": "small",
        "model": {"layers": [{"dense": 2}], "loss": "softmax_cross_entropy"},
        "data": {"source": "digits"},
        "strategy": SGD,
        "limits": {"samples": 100},
    }
    return build_job({**plain, **fields}, folder, where)
