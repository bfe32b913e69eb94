"""A small job, of which a test writes only what it is about."""

from __future__ import annotations

import json
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


def dense(*units: int) -> dict[str, Any]:
    """A model of dense layers that tells classes apart."""
    return {"layers": [{"dense": count} for count in units], "loss": "softmax_cross_entropy"}


def small_fields(**fields: Any) -> dict[str, Any]:
    """A job of one layer on the digits, with these fields in place of its own."""
    plain = {
        "name": "small",
        "model": dense(10),
        "data": {"source": "digits"},
        "strategy": SGD,
        "limits": {"samples": 100},
    }
    return {**plain, **fields}


def small_job(folder: Path = Path("/nonexistent"), where: str = "job", **fields: Any) -> Job:
    """The job of `small_fields`."""
    return build_job(small_fields(**fields), folder, where)


def small_file(folder: Path, **fields: Any) -> Path:
    """The file `job.yaml` of `small_fields`."""
    path = folder / "job.yaml"
    path.write_text(json.dumps(small_fields(**fields)))
    return path
