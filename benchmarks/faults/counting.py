"""Learners of a DiLoCo job that count: each sample that is trained adds one to its number of every row of the model.

An inner step subtracts as many as there are learners, by plain SGD at rate 1. So the learners' differences are whole
numbers, which the mean over equal weights, a power of two, divides without rounding, and shards step by plain SGD at
rate 1: in the end a number is minus how often its sample was counted there. A push travels while a learner computes,
in two fragments.

Leases are given in the order of an epoch, and a job that is stopped has its leases done. So the samples that are
acknowledged are the first of that order: `expected` has how often each was trained.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.harness import runs
from dbelief.data import permutation

SAMPLES, BATCH, STEPS, LEARNERS = 8_192, 8, 4, 2
WAIT_S = 0.005
"""Time of a step beyond that of its computing."""
ENDS_S = 120.0
MODEL = f"""
import numpy as np


class Counting:
    \"\"\"Rows of numbers, one for each sample.\"\"\"

    def parameters(self, rng):
        return {{f"row-{{row}}": np.zeros({SAMPLES}, np.float32) for row in range(ROWS)}}

    def loss_and_gradient(self, views, batch, out):
        counts = np.bincount(batch.inputs[:, 0], minlength={SAMPLES})
        for row in out.values():
            row[:] = {LEARNERS} * counts
        return 1.0
"""


def job_of(run: runs.Run, parameters: int, seed: int) -> dict[str, Any]:
    """The job, of about so many numbers; its files are in the run's folder."""
    (run.folder / "counting.py").write_text(MODEL.replace("ROWS", str(max(1, parameters // SAMPLES))))
    numbers = np.arange(SAMPLES)
    np.savez(run.folder / "numbers.npz", inputs=numbers[:, None], targets=np.zeros(SAMPLES, np.float32))
    sgd = {"name": "sgd", "rate": 1.0}
    strategy = {"name": "diloco", "batch": BATCH, "steps": STEPS, "inner": sgd, "outer": sgd}
    return {
        "name": run.run.name,
        "model": {"python": "counting.py:Counting"},
        "data": {"source": "npz", "file": "numbers.npz", "validation": 0, "test": 0},
        "strategy": {**strategy, "fragments": 2, "delay": 1, "lease": 8 * BATCH * STEPS},
        "limits": {"wall_s": 36_000},
        "replicas": LEARNERS,
        "seed": seed,
    }


def expected(samples: int, seed: int) -> np.ndarray:
    """How often each sample is trained, (`SAMPLES`,) int64, once so many are acknowledged."""
    epochs, more = divmod(samples, SAMPLES)
    counts = np.full(SAMPLES, epochs, np.int64)
    counts[permutation(SAMPLES, seed, epochs)[:more]] += 1
    return counts


def compare(rows: Sequence[np.ndarray], counts: np.ndarray) -> dict[str, int]:
    """Numbers of the rows that are not minus their count, bit for bit; what they have lost, and have twice."""
    wanted = (0 - counts).astype(np.float32)
    missing = [counts + row.astype(np.float64) for row in rows]
    return {
        "wrong_numbers": sum(int(np.count_nonzero(row.view(np.int32) != wanted.view(np.int32))) for row in rows),
        "lost": round(sum(float(np.maximum(one, 0).sum()) for one in missing)),
        "doubled": round(sum(float(np.maximum(-one, 0).sum()) for one in missing)),
    }


class Learners:
    """The learners, each a process."""

    def __init__(self, run: runs.Run, coordinator: list[str], seed: int) -> None:
        self._run, self._seed = run, seed
        for number in range(LEARNERS):
            words = ["worker", *coordinator, "--number", str(number)]
            run.start(f"worker-{number}", words, prefix=["env", f"DBELIEF_COMPUTE_WAIT={WAIT_S}"])

    def trains(self) -> bool | None:
        """Whether samples are acknowledged; None before."""
        return self._run.samples() > 0 or None

    def longest_s(self, since_s: float) -> None:
        """Nothing: their pushes are not timed."""

    def end(self, coordinator: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Stop the job, and set its parameters against the samples that it has trained."""
        coordinator.send_signal(signal.SIGTERM)
        runs.wait_for(coordinator.poll, "the end of the job", ENDS_S)
        summary = self._run.summary()
        rows = list(load_file(self._run.run / "model.safetensors").values())
        found = compare(rows, expected(summary["samples"], self._seed))
        done = {"acknowledged": summary["pushes"], "samples": summary["samples"], "parameters": SAMPLES * len(rows)}
        return {**done, "reported_lost": summary["pushes_lost"], **found}

    def close(self) -> None:
        """Nothing: they end with their job."""
