"""What a job has measured of itself: the difference of two statuses, or the summary of a run that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dbelief.errors import UserError
from dbelief.job import Job, Sandblaster
from dbelief.monitor.format import plural
from dbelief.rundir.summary import Summary

LEAST_STEPS = 5
"""Mini-batches of a worker, at least, for a mean."""
LEAST_ROUNDS = 2
"""Pushes of a worker, at least: with DiLoCo one follows many mini-batches."""
FAIR = 0.5
"""Share of a machine's processors that a job gets where other programs want all of them."""
EXCHANGED = ("fetch", "push")
"""Phases of a worker that are exchanges with the shards."""


@dataclass(frozen=True)
class ProcessorLoad:
    """Processors of one process, and their use.

    Attributes
    ----------
    machine, network, cores
        As in `ProcessorFigures`.
    used, busy
        Processors in use, means: by the process, and by all programs of its machine.
    answer_s
        Shortest time of an answer from the coordinator, in seconds; 0: not known.
    """

    machine: str
    network: str
    cores: float
    used: float
    busy: float
    answer_s: float = 0.0

    @classmethod
    def of(cls, after: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> ProcessorLoad | None:
        """From totals, or the difference of two; None where no time has passed between them."""
        before = before or {"used_s": 0.0, "busy_s": 0.0, "lived_s": 0.0}
        lived_s = after["lived_s"] - before["lived_s"]
        if lived_s <= 0:
            return None
        used, busy = ((after[name] - before[name]) / lived_s for name in ("used_s", "busy_s"))
        return cls(after["machine"], after["network"], after["cores"], used, busy, after["answer_s"])


@dataclass(frozen=True)
class WorkerLoad:
    """One worker's own time, and what it has made in it.

    Attributes
    ----------
    samples, steps, pushes, sent, received
        Samples, mini-batches and pushes that are acknowledged; bytes of parameters.
    seconds
        Of its computing thread, by phase: compute, data, fetch, push, wait.
    """

    number: int
    samples: int
    steps: int
    pushes: int
    sent: int
    received: int
    seconds: Mapping[str, float]
    processors: ProcessorLoad | None = None

    @property
    def time_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def samples_per_s(self) -> float:
        """Samples per second of its own time."""
        return self.samples / self.time_s if self.time_s else 0.0

    def step_s(self, *phases: str) -> float:
        """Seconds of a mini-batch in these phases; 0 without a mini-batch."""
        return sum(self.seconds.get(phase, 0.0) for phase in phases) / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class ShardLoad:
    """One shard; `parameters` that it holds."""

    number: int
    parameters: int
    processors: ProcessorLoad | None = None


@dataclass(frozen=True)
class MachineLoad:
    """Processors of one machine: used by this job's processes, and by others.

    Attributes
    ----------
    cores
        Processors that the job's processes may use.
    used, others
        Processors in use, means.
    networks
        Number of networks among its processes: more than one where processes have links on one machine.
    """

    name: str
    cores: float
    used: float
    others: float
    workers: int
    networks: int = 1

    @property
    def free(self) -> float:
        """Processors that are left for this job, with those that it uses.

        Never less than those, nor than the share that the system gives it beside others.
        """
        return max(self.cores - self.others, self.used, FAIR * self.cores)

    @property
    def busy_share(self) -> float:
        """Share of the free processors that the job uses, 0 to 1."""
        return self.used / self.free if self.free else 0.0


@dataclass(frozen=True)
class Measurements:
    """Measurements of a job.

    Attributes
    ----------
    window_s
        Seconds that were measured.
    over
        Whether the run has ended.
    lease_samples
        Samples in a lease of the usual size; 0: not known, or no leases.
    total_samples, unleased_samples
        Samples at which the job ends; those not leased yet. None: no such limit, or not known.
    """

    job: Job
    window_s: float
    over: bool
    workers: tuple[WorkerLoad, ...]
    shards: tuple[ShardLoad, ...]
    coordinator: ProcessorLoad | None = None
    lease_samples: int = 0
    total_samples: int | None = None
    unleased_samples: int | None = None

    @property
    def training(self) -> tuple[WorkerLoad, ...]:
        """Workers that have made mini-batches."""
        return tuple(worker for worker in self.workers if worker.steps)

    @property
    def samples_per_s(self) -> float:
        """Samples per second of all workers, each by its own time."""
        return sum(worker.samples_per_s for worker in self.workers)

    @property
    def machines(self) -> tuple[MachineLoad, ...]:
        """Machines of all processes that have reported."""
        loads: list[tuple[bool, ProcessorLoad]] = [
            *((True, one.processors) for one in self.workers if one.processors is not None),
            *((False, one.processors) for one in self.shards if one.processors is not None),
            *([(False, self.coordinator)] if self.coordinator is not None else []),
        ]
        found = []
        for name in dict.fromkeys(load.machine for _, load in loads):
            mine = [(trains, load) for trains, load in loads if load.machine == name]
            used = sum(load.used for _, load in mine)
            others = max(0.0, fmean(load.busy for _, load in mine) - used)
            cores, workers = max(load.cores for _, load in mine), sum(trains for trains, _ in mine)
            networks = len({load.network for _, load in mine})
            found.append(MachineLoad(name, cores, used, others, workers, networks))
        return tuple(found)

    @property
    def shard_networks(self) -> Counter[str]:
        """Number of shards by network."""
        return Counter(one.processors.network for one in self.shards if one.processors is not None)

    @property
    def across_links(self) -> bool:
        """Whether any worker exchanges with a shard in another network."""
        shards = self.shard_networks
        workers = {one.processors.network for one in self.workers if one.processors is not None}
        return bool(shards) and any(set(shards) - {network} for network in workers)

    def missing(self) -> str:
        """What is lacking for advice, and how long that takes; "" for nothing."""
        if not self.workers:
            return "no worker has trained"
        enough = [one for one in self.workers if one.steps >= LEAST_STEPS and one.pushes >= LEAST_ROUNDS]
        if enough:
            return ""
        best = max(self.workers, key=lambda one: one.steps)
        made = f"{plural(best.steps, 'mini-batch', 'mini-batches')} and {plural(best.pushes, 'push', 'pushes')}"
        least = f"{LEAST_STEPS} mini-batches and {LEAST_ROUNDS} pushes of one are needed"
        if self.over:
            return f"no worker has made more than {made}, and {least}"
        if best.steps and best.pushes:
            longer_s = self.window_s * max(LEAST_STEPS / best.steps, LEAST_ROUNDS / best.pushes)
            return f"no worker made more than {made} in {self.window_s:.0f} s, and {least}: --over {1.5 * longer_s:.0f}"
        return f"no worker has pushed in {self.window_s:.0f} s, and {least}: --over {3 * self.window_s:.0f}"


def of_statuses(job: Job, before: Mapping[str, Any], after: Mapping[str, Any]) -> Measurements:
    """What happened between two statuses of a running job.

    Members that have joined since count from their start; one that has left does not count.

    Raises
    ------
    UserError
        The job is of a strategy without mini-batches.
    """
    _check(job)
    earlier = {_key(row): row for row in before["members"]}
    workers = [_worker(row, earlier.get(_key(row))) for row in after["members"] if _trains(row)]
    servers = [row for row in after["members"] if row["role"] == "ps" and _alive(row) and not row["follows"]]
    shards = [_shard(row, earlier.get(_key(row))) for row in servers]
    own = after.get("processors")
    return Measurements(
        job,
        after["elapsed_s"] - before["elapsed_s"],
        False,
        tuple(workers),
        tuple(shards),
        ProcessorLoad.of(own, before.get("processors")) if own else None,
        after.get("lease_samples") or 0,
        after.get("total_samples"),
        after.get("unleased_samples"),
    )


def of_summary(job: Job, summary: Summary) -> Measurements:
    """What a run that has ended has measured, over the whole run.

    Raises
    ------
    UserError
        As in `of_statuses`, or the run is of a version that measured too little.
    """
    _check(job)
    if not summary.steps_per_replica:
        raise UserError(f"job {summary.job}: its summary has no figures by replica: it was run by an older version")
    loads = {name: ProcessorLoad.of(row) for name, row in summary.processors.items()}
    workers = [
        WorkerLoad(
            int(number),
            summary.samples_per_replica.get(number, 0),
            summary.steps_per_replica.get(number, 0),
            summary.pushes_per_replica.get(number, 0),
            _moved(summary.bytes_per_replica.get(number, {}), "sent"),
            _moved(summary.bytes_per_replica.get(number, {}), "received"),
            summary.phase_seconds.get(number, {}),
            loads.get(f"replica {number}") or loads.get(f"client {number}"),
        )
        for number in summary.phase_seconds
    ]
    number_of = summary.shards or 1
    shards = [
        ShardLoad(number, summary.parameters // number_of, loads.get(f"shard {number}")) for number in range(number_of)
    ]
    total = summary.samples if summary.trained else None
    return Measurements(
        job,
        summary.wall_s,
        True,
        tuple(workers),
        tuple(shards),
        loads.get("coordinator"),
        summary.lease_samples,
        total,
        0,
    )


def _check(job: Job) -> None:
    if isinstance(job.strategy, Sandblaster):
        raise UserError(
            f"job {job.name}: sandblaster has no mini-batches to advise on; `dbelief report` has its passes"
        )


def _key(row: Mapping[str, Any]) -> tuple[str, int, bool]:
    return row["role"], row["id"], row.get("follows", False)


def _alive(row: Mapping[str, Any]) -> bool:
    return row["state"] not in ("left", "died")


def _trains(row: Mapping[str, Any]) -> bool:
    return row["role"] in ("worker", "client") and _alive(row)


def _moved(row: Mapping[str, int], way: str) -> int:
    return row.get(way, 0) + row.get(f"shared_{way}", 0)


def _worker(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> WorkerLoad:
    new: dict[str, Any] = row["totals"]
    old: dict[str, Any] = before["totals"] if before else {"seconds": {}}
    phases = {phase: seconds - old["seconds"].get(phase, 0.0) for phase, seconds in new["seconds"].items()}
    return WorkerLoad(
        row["id"],
        row["samples"] - (before["samples"] if before else 0),
        new["steps"] - old.get("steps", 0),
        round(new["pushes"] - old.get("pushes", 0)),
        new["sent"] - old.get("sent", 0),
        new["received"] - old.get("received", 0),
        phases,
        _processors(new, old if before else None),
    )


def _shard(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> ShardLoad:
    return ShardLoad(row["id"], row["parameters"], _processors(row["totals"], before["totals"] if before else None))


def _processors(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> ProcessorLoad | None:
    """The load of one incarnation."""
    if new["processors"] is None:
        return None
    same = old is not None and old["incarnation"] == new["incarnation"]
    return ProcessorLoad.of(new["processors"], old["processors"] if same and old is not None else None)
