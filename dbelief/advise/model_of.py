"""The model of a job's mini-batches, from its measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dbelief.job import Job

from .measurements import EXCHANGED, Measurements, WorkerLoad
from .step_model import Geometry, StepModel

LEAST_PROCESSORS = 0.01
"""Free processors, at least: a machine may be full of other programs."""


def in_lockstep(job: Job) -> bool:
    """Whether workers wait for the slowest in each exchange."""
    strategy = job.strategy
    return strategy.grouped or (strategy.staleness == 0 and not strategy.turns)


def model_of(found: Measurements) -> StepModel:
    """The calibrated model; some worker must have made mini-batches."""
    workers, lockstep = found.training, in_lockstep(found.job)
    exchanges = [one.step_s(*EXCHANGED, *(("wait",) if found.job.strategy.grouped else ())) for one in workers]
    idle = [0.0 if found.job.strategy.grouped else one.step_s("wait") for one in workers]
    rate = sum(one.steps / one.time_s for one in workers)
    machines = [one for one in found.machines if one.workers]
    shards = [one.processors.used for one in found.shards if one.processors is not None]
    sent, received = sum(one.sent for one in workers), sum(one.received for one in workers)
    pick = min if lockstep else _mean
    answers = [one.processors.answer_s for one in workers if one.processors is not None] if found.across_links else []
    return StepModel(
        tuple(one.step_s("compute", "data") for one in workers),
        pick(exchanges),
        pick(idle),
        rate,
        sum(one.used for one in machines) / rate,
        max(LEAST_PROCESSORS, sum(one.free for one in machines)) if machines else 1.0,
        max(shards, default=0.0) / rate,
        max(1, len(found.shards)),
        max(answers, default=0.0),
        sent / (sent + received) if sent + received else 0.5,
        _geometry(workers, found.shard_networks),
        lockstep,
    ).calibrated()


def _mean(rows: Sequence[float]) -> float:
    return sum(rows) / len(rows)


def _geometry(workers: Sequence[WorkerLoad], shards: Counter[str]) -> Geometry:
    """Parts of the bytes on links; shards hold equal parts."""
    networks = [one.processors.network for one in workers if one.processors is not None]
    total = shards.total()
    if not networks or not total:
        return Geometry()
    own = _mean([1 - shards[network] / total for network in networks])
    away = [
        count / total * sum(one != network for one in networks) / len(networks) for network, count in shards.items()
    ]
    return Geometry(own, max(away))
