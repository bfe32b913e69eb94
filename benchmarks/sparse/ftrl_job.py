"""Jobs of `ftrl_script.py`: logistic regression by FTRL with rules of the shards, by workers that run free."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import runs
from benchmarks.sparse.ftrl import FtrlSetting

SCRIPT = Path(__file__).with_name("ftrl_script.py")
LIMIT_S = 1_800.0
"""Deadline of a job; after it its processes are ended."""
NAME = "ftrl"


class Trained(NamedTuple):
    """Result of a job.

    Attributes
    ----------
    logits : float32, shape (n,)
        Of the test set.
    summary
        The run's.
    seconds
        From the start of the first process to the end of the job.
    """

    logits: np.ndarray
    summary: dict[str, Any]
    seconds: float


def fields_of(setting: FtrlSetting, units: int, epochs: int, workers: int, seed: int) -> dict[str, Any]:
    """The job file; samples are counted in units, which are mini-batches."""
    return {
        "name": NAME,
        "model": {"source": "script"},
        "data": {"source": "script", "train": units, "validation": 1},
        "strategy": {
            "name": "downpour",
            "batch": 1,
            "rule": {"name": "adagrad", "rate": setting.rate},
            "warm_start": None,
        },
        "limits": {"epochs": epochs},
        "evaluate": {"every": 10**9, "keep": "last"},
        "snapshots": {"every_s": None},
        "shards": 2,
        "replicas": workers,
        "seed": seed,
        "tables": {"weights": {"width": 1, "rule": {"name": "ftrl", **setting._asdict()}, "init": "zeros"}},
    }


def train(fields: dict[str, Any], words: Sequence[str]) -> Trained:
    """Run a job to its end.

    `words`: arguments of the script behind the first.

    Raises
    ------
    TimeoutError
        After `LIMIT_S`.
    SystemExit
        The job failed; or a process was left, or the logits are not those of the run's result.
    """
    with runs.temporary_run(f"runs/{NAME}") as run:
        (run.folder / "job.yaml").write_text(json.dumps(fields))
        file = run.folder / "logits.npy"
        began_s = time.monotonic()
        launcher = run.start("run", ["run", "--quiet", "--job", "job.yaml", str(SCRIPT), str(file), *words])
        code = runs.wait_for(launcher.poll, "the end of the job", LIMIT_S)
        took_s = time.monotonic() - began_s
        if code:
            raise SystemExit("\n".join(run.output("run")))
        if left := run.end():
            raise SystemExit(f"processes left: {left}")
        return Trained(np.load(file), run.summary(), took_s)


def check_loss(trained: Trained, loss: float) -> None:
    """Check that a job's logits are those of its result: the summary has their log loss on the labels.

    Raises
    ------
    SystemExit
        It has another one.
    """
    if not math.isclose(trained.summary["validation_loss"], loss, rel_tol=1e-6):
        raise SystemExit(f"the run's loss is {trained.summary['validation_loss']}, that of its logits {loss}")
