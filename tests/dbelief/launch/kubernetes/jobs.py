"""Twelve jobs for Kubernetes, of different strategies and surroundings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dbelief.job import Job, parse_job

LAYERS = {"layers": [{"dense": 32}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"}
DOWNPOUR = {"name": "downpour", "batch": 16, "rule": {"name": "adagrad", "rate": 0.05}}
SGD = {"name": "sgd", "rate": 0.1}
_ELASTIC = {"name": "async-easgd", "batch": 16, "rate": 0.05, "period": 4, "rho": 2.5}
_SCRIPT = {"model": {"source": "script"}, "data": {"source": "script", "train": 1000}}

JOBS: Mapping[str, Mapping[str, Any]] = {
    "downpour": {},
    "followers": {"replication": 2, "shards": 3},
    "gpus": {"device": "cuda", "kubernetes": {"gpus": 2, "worker": {"cpu": 4, "memory_mib": 8192}}},
    "store": {"output": "s3://bucket/runs", "kubernetes": {"store": "aws", "service_account": "trainer"}},
    "sandblaster": {"strategy": {"name": "sandblaster", "portion": 100, "iterations": 5}},
    "elastic": {"strategy": _ELASTIC},
    "synchronous": {"strategy": {"name": "sync-sgd", "batch": 16, "rule": SGD, "form": "shards"}},
    "ring": {"strategy": {"name": "sync-sgd", "batch": 16, "rule": SGD, "form": "workers"}},
    "diloco": {"strategy": {"name": "diloco", "batch": 16, "steps": 8, "inner": SGD, "quorum": 2}},
    "cut": {"grid": [2], "replicas": 3},
    "script": _SCRIPT,
    "office": {"kubernetes": {"spot": True, "data": "data", "grace_s": 25, "registry": "rediss://elsewhere:6379"}},
}


def job(name: str, **kubernetes: Any) -> Job:
    """One of the jobs, with more fields of its `kubernetes` section."""
    given = JOBS[name]
    fields = {
        "name": f"Job_{name}",
        "model": LAYERS,
        "data": {"source": "digits"},
        "strategy": DOWNPOUR,
        "limits": {"epochs": 2},
        "shards": 2,
        "replicas": 4,
        **given,
        "kubernetes": {**given.get("kubernetes", {}), **kubernetes},
    }
    return parse_job(yaml.safe_dump(fields), Path("/srv/job"), name)
