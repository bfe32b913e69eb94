"""What calls, bytes and failovers cost: from the results pages, and the runs of `benchmarks/simulate`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dbelief.errors import UserError
from dbelief.job import Job
from dbelief.job.document import yaml_document
from dbelief.job.document.yaml_document import to_yaml
from dbelief.job.lease_size import LEASES_PER_S
from dbelief.job.load import text_of
from dbelief.plan.exchange import ROUND_TRIPS, SLOWDOWN

REPORT_S, REPORTS_PER_S = 0.5, LEASES_PER_S
"""Seconds between two reports of a worker at least, and reports of all of them a second."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a processor like those that the results pages name, unless said otherwise.

    Attributes
    ----------
    lease_s, report_s, beat_s, join_s
        Of the coordinator: for a lease with a report, a report, a heartbeat, a worker that joins.
    idle, coordinator_wake_s
        Share of a processor that the coordinator uses without workers; of a call that finds it idle, more than others.
    push_call_s, push_number_s, fetch_call_s, fetch_number_s
        Of a shard: for a push and a fetch, and for each parameter of them.
    client_call_s, client_number_s
        Of a worker: for a call to a shard, and for each parameter that it sends or receives.
    wake_s
        Of what a worker begins on an idle processor; of shards and the coordinator where they share processors.
    rounds
        What the costs of calls are multiplied by where pushes wait for their round.
    message_s, message_byte_s
        Of a sum that workers make among themselves: for a message, and for each byte.
    shared
        What the costs of shards and workers are multiplied by where they share memory.
    trips, lockstep_trips
        Times that the latency passes in each direction of an exchange: more than 1 where windows of TCP have to grow;
        where all exchange at the same time.
    slowdown, lockstep_slowdown
        Time of bytes on a link, as a multiple of that at its rate: packets are lost where many exchange at a time.
    promote_s, restore_byte_s
        Until a follower serves once the leader's lease has ended, by the wall; of a shard's bytes that are read.
    jitter_s
        Standard deviation of a mini-batch's time by the operating system, as of a process that sleeps.
    start_s, coordinator_start_s
        From a process's start until it works, or serves; from a coordinator's until it grants leases; by the wall.
    program_s, program_byte_s
        Of the shards' programs between two passes of a batch method, by the wall; of a byte of each vector they read.
    snapshot_byte_s
        Of a snapshot set, in which a shard serves nothing.
    """

    lease_s: float = 1.15e-3
    report_s: float = 0.66e-3
    beat_s: float = 0.4e-3
    join_s: float = 2.0e-3
    idle: float = 0.01
    coordinator_wake_s: float = 1.2e-3
    push_call_s: float = 0.64e-3
    push_number_s: float = 3.0e-9
    fetch_call_s: float = 0.35e-3
    fetch_number_s: float = 1.3e-9
    client_call_s: float = 0.6e-3
    client_number_s: float = 2.0e-9
    wake_s: float = 0.56e-3
    rounds: float = 1.4
    message_s: float = 0.07e-3
    message_byte_s: float = 0.5e-9
    shared: float = 0.5
    trips: float = 1.5
    slowdown: float = 1.05
    lockstep_trips: float = ROUND_TRIPS
    lockstep_slowdown: float = SLOWDOWN
    promote_s: float = 0.3
    restore_byte_s: float = 1.0e-9
    jitter_s: float = 1.0e-3
    start_s: float = 1.6
    coordinator_start_s: float = 1.9
    program_s: float = 10e-3
    program_byte_s: float = 0.2e-9
    snapshot_byte_s: float = 0.1e-9

    def with_values(self, **values: float) -> Costs:
        """The same with other values."""
        return replace(self, **values)

    def calls(self, job: Job, workers: int, leases_per_s: float = 0.0) -> tuple[float, float]:
        """Reports and heartbeats per second, beside leases, of so many workers.

        A lease's last report goes with the request for the next one, and a call of any kind is a heartbeat.
        """
        every_s = min(max(REPORT_S, workers / REPORTS_PER_S), job.deadlines.progress_s / 2)
        heartbeat_s = job.deadlines.beat_s * min(1 / 3, max(1 / 4, workers / 1000))
        reports_per_s = workers / every_s
        if leases_per_s:
            reports_per_s = leases_per_s * _between(workers / leases_per_s, every_s)
        calls_per_s = reports_per_s + leases_per_s
        return reports_per_s, calls_per_s * _between(workers / calls_per_s, heartbeat_s) if calls_per_s else 0.0

    def background(self, job: Job, workers: int, leases_per_s: float = 0.0) -> float:
        """Share of a processor that the coordinator needs beside leases; calls follow each other without a pause."""
        reports_per_s, beats_per_s = self.calls(job, workers, leases_per_s)
        return self.idle + reports_per_s * self.report_s + beats_per_s * self.beat_s

    def coordinator_share(self, job: Job, workers: int, leases_per_s: float) -> float:
        """Share of a processor that the coordinator uses, 0 to 1.

        A call that finds it idle wakes it: of so many calls, that share which it is not in use.
        """
        needed = leases_per_s * self.lease_s + self.background(job, workers, leases_per_s)
        woken = (leases_per_s + sum(self.calls(job, workers, leases_per_s))) * self.coordinator_wake_s
        return min(1.0, (needed + woken) / (1 + woken))

    def saturation(self, job: Job) -> int:
        """Workers at which the coordinator uses a processor wholly, with as many leases as it paces them to."""
        low, high = 1, 2
        while self._load(job, high) < 1.0 and high < 1 << 40:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._load(job, middle) < 1.0 else (low, middle)
        return high

    def _load(self, job: Job, workers: int) -> float:
        return LEASES_PER_S * self.lease_s + self.background(job, workers, LEASES_PER_S)


def _between(time_s: float, every_s: float) -> int:
    """Calls within a time, without those at its ends, where one follows another after so many seconds."""
    return max(0, math.ceil(time_s / every_s - 1e-9) - 1)


def load_costs(path: Path) -> Costs:
    """Read a file that `dbelief simulate --calibrate` has written.

    Raises
    ------
    JobError
        It cannot be read, or is no YAML.
    UserError
        It has something else than costs.
    """
    found = yaml_document.read(text_of(path), str(path)).value
    names = {field.name for field in fields(Costs)}
    if not isinstance(found, dict) or not found:
        raise UserError(f"{path}: costs are a mapping with {', '.join(sorted(names))}")
    for name, value in found.items():
        if name not in names:
            raise UserError(f"{path}: {name!r} is no cost: they are {', '.join(sorted(names))}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UserError(f"{path}: {name}: must be a number of 0 or more, not {value!r}")
    return Costs(**{name: float(value) for name, value in found.items()})


def costs_yaml(costs: Costs) -> str:
    """The text of such a file."""
    values: dict[str, Any] = {name: float(f"{value:.4g}") for name, value in asdict(costs).items()}
    return to_yaml(values)
