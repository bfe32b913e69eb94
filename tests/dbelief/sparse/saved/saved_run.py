"""A run with a table whose rows shards have trained, and its snapshot sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dbelief.checkpoint.set_storage import LocalSets, SetStorage
from dbelief.core.layout import Layout
from ps_server import snapshot
from tests.ps_server.store.test_bucket import SPANS, USER, A, Served

JOB = """
name: clicks
seed: 1
model: {source: script}
data: {source: script, train: 240}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {wall_s: 60}
tables:
  user: {width: 3, rule: {name: RULE, rate: 0.1}, init: uniform(0.5), buckets: 9}
"""
SET = "000000000240-0001"


def save(sets: SetStorage, served: Served, set_id: str = SET) -> None:
    """A set of all shards."""
    assert sets.claim(set_id)
    files = sets.files_at(str(sets.place(set_id)))
    assert files is not None
    for number, shard in enumerate(served.shards):
        snapshot.save(shard, files, number, set_id, "clicks", 1)
    state: dict[str, Any] = {
        "segments": len(SPANS),
        "parts": {f"shard-{number}.json": 1 for number in range(len(served.shards))},
        "boxes": Layout.of({"w": np.empty(4, np.float32)}).rows(),
        "nominal_length": 4,
        "progress": {"samples": 240, "best": None},
    }
    sets.commit(set_id, "clicks", state)


def made(folder: Path, served: Served, rule: str = "adagrad") -> Path:
    """The folder of a run that ended."""
    folder.mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(JOB.replace("RULE", rule))
    save(LocalSets(folder / "snapshots"), served)
    return folder


def pushed(served: Served, keys: np.ndarray, seed: int = 0) -> None:
    """Push a row for each of these keys, in any order and with any sign."""
    rows = np.random.default_rng(seed).standard_normal((keys.size, USER.width), dtype=np.float32)
    served.push(A, keys, rows)
