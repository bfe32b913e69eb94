"""Orders of fetches and pushes of a fleet, as `dbelief simulate JOB --machines FLEET --delays FILE` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbelief.job import Elastic, Job
from dbelief.simulate.description import Scenario
from dbelief.simulate.fleet import load_fleet
from dbelief.simulate.outcome import run
from dbelief.simulate.recorded import ROOM, delays_of

STEP_S = 0.2
FLEET = """
groups:
  - {name: office, machines: MACHINES, step: 200ms, across: 0.3, slow: {share: 0.04, factor: 5},
     link: 100Mbit, latency: 2ms}
  - {name: servers, workers: 0, shards: 16, coordinator: true, link: 10Gbit}
"""


def write_order(job: Job, replicas: int, parameters: int, samples: int, path: Path) -> None:
    """Simulate the job on so many machines of an office, and write a delays file.

    Parameters
    ----------
    parameters, samples
        Of the model, and of the training set.
    """
    fleet_file = path.with_suffix(".yaml")
    fleet_file.write_text(FLEET.replace("MACHINES", str(replicas)))
    fleet = load_fleet(fleet_file)
    pushes = max(2_000, 20 * replicas)
    strategy: Any = job.strategy
    each = strategy.period if isinstance(strategy, Elastic) else strategy.n_push
    # A slow machine needs 5 steps' time for one, and a round waits for it.
    seconds = 60 + 10 * STEP_S * each * pushes / replicas
    job = job.model_copy(update={"replicas": replicas, "shards": fleet.shards, "delays": None})
    scenario = Scenario(job, fleet, parameters, samples=samples, seconds=seconds, traced=ROOM * pushes, endless=True)
    delays_of(scenario, run(scenario)[1], pushes).write(path)
