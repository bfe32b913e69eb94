"""Replicas of a job with a table that count: each sample that is trained subtracts one from the rows of its keys.

A script (which needs torch) has the sum of the rows of a mini-batch as its loss, and the table steps by plain SGD at
rate 1 from zeros: so the gradient of a row is how often its key is in the mini-batch, and whatever the order, a row is
minus how often its key was trained, exactly. A sample has a key of its own, and one of `GROUP` samples, whose row every
replica pushes all the time.

Which samples were trained follows from the acknowledged ones, as in `counting.py`; rows are read from the job's last
snapshot set.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import numpy as np

from benchmarks.faults.counting import ENDS_S, expected
from benchmarks.harness import runs
from dbelief.checkpoint.shard_file import read_segments
from dbelief.core.layout import Kind, SegmentSpan
from dbelief.rundir.events import read_events

SAMPLES, BATCH, GROUP, WIDTH, BUCKETS, REPLICAS = 8_192, 8, 16, 4, 30, 2
WAIT_S = 0.002
TABLE = "counts"
MIX = 0x9E3779B97F4A7C15
SCRIPT = f"""
import time

import numpy as np
import torch

import dbelief


class Rows(torch.nn.Module):
    def __init__(self, job):
        super().__init__()
        self.rows = dbelief.torch.EmbeddingBag(job, "{TABLE}")
        self.zero = torch.nn.Parameter(torch.zeros(()))

    def forward(self, keys):
        return self.rows(keys).sum() + 0 * self.zero


def keys_of(samples):
    keys = np.stack([samples, {SAMPLES} + samples // {GROUP}], axis=1).astype(np.uint64) * np.uint64({MIX})
    return torch.from_numpy(keys.view(np.int64))


with dbelief.join() as job:
    model = Rows(job)
    sync = dbelief.torch.Sync(job, model, torch.optim.SGD(model.parameters(), lr=1.0))
    for batch in job.sampler(range({SAMPLES}), batch_size={BATCH}):
        time.sleep({WAIT_S})
        loss = model(keys_of(np.asarray(batch)))
        loss.backward()
        sync.step(loss, samples=len(batch))
"""


def job_of(run: runs.Run, seed: int) -> dict[str, Any]:
    """The job; its script is in the run's folder."""
    (run.folder / "rows.py").write_text(SCRIPT)
    sgd = {"name": "sgd", "rate": 1.0}
    strategy = {"name": "downpour", "batch": BATCH, "rule": sgd, "warm_start": None, "lease": 32 * BATCH}
    return {
        "name": run.run.name,
        "model": {"source": "script"},
        "data": {"source": "script", "train": SAMPLES},
        "strategy": strategy,
        "limits": {"wall_s": 36_000},
        "replicas": REPLICAS,
        "seed": seed,
        "snapshots": {"every_s": 10},
        "tables": {TABLE: {"width": WIDTH, "rule": sgd, "init": "zeros", "buckets": BUCKETS}},
    }


def keys_of(samples: np.ndarray) -> np.ndarray:
    """(n, 2) int64 keys of samples, as the script has them."""
    keys = np.stack([samples, SAMPLES + samples // GROUP], axis=1).astype(np.uint64) * np.uint64(MIX)
    return keys.view(np.int64)


def wanted(samples: int, seed: int) -> dict[int, int]:
    """By key how often it was trained, once so many samples are acknowledged."""
    counts, found = expected(samples, seed), dict[int, int]()
    for (own, group), count in zip(keys_of(np.arange(SAMPLES)).tolist(), counts.tolist(), strict=True):
        found[own] = count
        found[group] = found.get(group, 0) + count
    return found


def compare(rows: dict[int, np.ndarray], counts: dict[int, int]) -> dict[str, int]:
    """Numbers of the rows that are not minus their count, bit for bit; what they have lost, and have twice."""
    wrong = lost = doubled = 0
    for key in rows.keys() | counts.keys():
        row, count = rows.get(key, np.zeros(WIDTH, np.float32)), counts.get(key, 0)
        right = np.full(WIDTH, 0 - count, np.float32)
        wrong += int(np.count_nonzero(row.view(np.int32) != right.view(np.int32)))
        missing = count + row.astype(np.float64)
        lost, doubled = lost + max(0, round(missing.max())), doubled + max(0, round(-missing.min()))
    return {"wrong_numbers": wrong, "lost": lost, "doubled": doubled}


class Replicas:
    """The replicas, each a process; see `failover.Load`."""

    def __init__(self, run: runs.Run, coordinator: list[str], seed: int) -> None:
        self._run, self._seed = run, seed
        for number in range(REPLICAS):
            run.start(
                f"worker-{number}", ["worker", *coordinator, "--number", str(number), "--", sys.executable, "rows.py"]
            )

    def trains(self) -> bool | None:
        """Whether samples are acknowledged; None before."""
        return self._run.samples() > 0 or None

    def longest_s(self, since_s: float) -> None:
        """Nothing: their pushes are not timed."""

    def end(self, coordinator: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Stop the job, and set the rows of its last set against the samples that it has trained."""
        coordinator.send_signal(signal.SIGTERM)
        runs.wait_for(coordinator.poll, "the end of the job", ENDS_S)
        summary = self._run.summary()
        rows = self._rows()
        found = compare(rows, wanted(summary["samples"], self._seed))
        done = {"acknowledged": summary["pushes"], "samples": summary["samples"], "parameters": WIDTH * len(rows)}
        return {**done, "reported_lost": summary["pushes_lost"], **found}

    def _rows(self) -> dict[int, np.ndarray]:
        """Rows of the last set, by key."""
        events = read_events(self._run.run / "events.jsonl")
        (last,) = [event["set"] for event in events if event["event"] == "snapshot"][-1:]
        spans = [SegmentSpan(1 + number, 1, 0, Kind.TABLE) for number in range(BUCKETS)]  # behind one dense number
        found: dict[int, np.ndarray] = {}
        folder = self._run.run / "snapshots" / last
        for stored in read_segments(folder, last, self._run.run.name, "sgd", spans):
            keys = stored.arrays["keys"].view(np.int64)
            numbers = stored.arrays[f"rows of {WIDTH} by sgd"].copy()  # the next segment is read into the same memory
            found |= dict(zip(keys.tolist(), numbers.reshape(-1, WIDTH), strict=True))
        return found

    def close(self) -> None:
        """Nothing: they end with their job."""
