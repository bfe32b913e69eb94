"""The time of a mini-batch of a worker that has the machine for itself, as a run of one worker reports it.

The job is run with one worker, which hardly exchanges: once in `RARELY` mini-batches. So its own work is all in it: its
data, the gradient, the rule of its own steps.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulate.plan import SANDBLASTER, Configuration
from benchmarks.simulate.real_runs import measured
from benchmarks.simulate.real_runs.deployed_job import START_S, deployed_job
from dbelief.job import build_job

RARELY = 64
DIALS = ("n_push", "n_fetch", "period", "steps")
LEFT_OUT = ("lease", "quorum")
FIRST_STEPS, SETTLED_S = 3, 1.0
"""Mini-batches, and the time after them, which do not count."""


@dataclass(frozen=True)
class OwnStep:
    """Seconds of a mini-batch, of a batch method's portion; and their standard deviation over mean."""

    seconds: float
    spread: float


def alone(one: Configuration) -> Configuration:
    """The configuration with one worker and one shard, on this machine."""
    strategy = {name: value for name, value in one.job["strategy"].items() if name not in LEFT_OUT}
    strategy |= {name: RARELY for name in DIALS if name in strategy}
    job = {**one.job, "strategy": strategy, "shards": 1, "replication": 1, "replicas": 1, "wire": {}}
    return dataclasses.replace(one, job=job, waits_s=(0.0,), link=None, kill=None)


def own_step(one: Configuration, seconds: float) -> float:
    """Seconds of a mini-batch, of a batch method's portion, from so many seconds of such a run."""
    single = alone(one)
    with deployed_job(single, seconds + START_S, None) as deployed:
        deployed.train(FIRST_STEPS)
        time.sleep(SETTLED_S)
        before = deployed.onlooker.ask("status")
        time.sleep(seconds)
        after = deployed.onlooker.ask("status")
        if one.kind == SANDBLASTER:
            return _of_portion(single, before, after, deployed.events())
        (row,) = measured.worker_rows(build_job(dict(single.job), Path()), before, after)
        return _own_s(row) / int(row["steps"])


def _of_portion(one: Configuration, before: Any, after: Any, events: list[dict[str, Any]]) -> float:
    """Of the time that is not waiting, a portion's share by samples."""
    (row,) = measured.batch_rows(before, after)
    begin_s, end_s = before["elapsed_s"], after["elapsed_s"]
    if (samples_per_s := measured.passes_speed(events, begin_s, end_s)) is None:
        raise TimeoutError("a worker alone has made too few passes")
    portions: float = samples_per_s * (end_s - begin_s) / int(one.job["strategy"]["portion"])
    return _own_s(row) / portions


def _own_s(row: dict[str, Any]) -> float:
    return float(row["seconds"]["compute"] + row["seconds"]["data"])
