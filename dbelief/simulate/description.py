"""A job on a fleet, as the records that the event loop works on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dbelief.errors import UserError
from dbelief.job import Job, Sandblaster
from dbelief.job.lease_size import FEW, LEASES_PER_S, lease_size

from .costs import Costs
from .events.draws import drawn, exponential, lognormal
from .events.parts import MACHINE, MOST_PROCESSORS, REPLICA, Failures, Schedule, Service, World, make_world
from .events.passes import Pass
from .exchange_schedule import ExchangeSchedule, schedule_of
from .fleet import Fleet, MachineGroup

NEVER = math.inf
UNLIMITED = 1 << 60
ASKED = 300.0
"""Bytes of a call without parameters, with its headers."""
LEAST_LEFT = 1e-3
"""Share of the coordinator's processor that is left for leases, at least."""
LEASE_LEFT = 0.75
"""Of a leader's lease, renewed at each half of it, what is left when it fails: a mean."""
KILLS = ("worker", "shard", "coordinator")


@dataclass(frozen=True)
class Scenario:
    """What is simulated.

    Attributes
    ----------
    parameters
        Number of trained parameters.
    samples
        Samples of the training set; 0: not known.
    seconds, warm_s
        Simulated seconds; those at the start that are not counted.
    kills
        Seconds at which a machine of the first group with workers, a shard, or the coordinator fails, by role.
    traced
        Events that are recorded.
    endless
        Whether the job goes on past its limits.
    """

    job: Job
    fleet: Fleet
    parameters: int
    costs: Costs = field(default_factory=Costs)
    samples: int = 0
    seconds: float = 3600.0
    warm_s: float = 0.0
    seed: int = 1
    kills: Mapping[str, float] = field(default_factory=dict)
    traced: int = 0
    endless: bool = False

    def world(self) -> World:
        """The world before its first event.

        Raises
        ------
        UserError
            The job's strategy is not simulated.
        """
        machines, places = _machines(self.fleet, self.costs)
        replicas = _replicas(self, machines, places)
        schedule = self.schedule
        tables = lognormal(_spread(self.fleet, self.costs)), exponential()
        return make_world(
            replicas,
            machines,
            self._plan(schedule),
            self._service(schedule, machines, places),
            self._failures(),
            tables,
            self.seed,
            self.traced,
        )

    @property
    def schedule(self) -> ExchangeSchedule:
        """What each worker exchanges."""
        workers = [group for group in self.fleet.groups if group.workers]
        slowest = min(group.crosses for group in workers)
        slower = self._crowd / min(group.speed for group in workers)
        latency_s = 2 * max(group.latency for group in workers) + self.costs.message_s * slower
        byte_s = self.slowdown / slowest + self.costs.message_byte_s * slower
        return schedule_of(self.job, self.parameters, self.fleet.workers, latency_s, byte_s)

    @property
    def _crowd(self) -> float:
        """Workers for each processor of the machine with the most of them, 1 at least: they add at the same time."""
        found = [1.0]
        for group in self.fleet.groups:
            mine = [one for one in self.fleet.groups if group.host is not None and one.host == group.host] or [group]
            many = sum(one.workers * (one.machines if group.host is not None else 1) for one in mine)
            found.append(many / group.processors if group.processors is not None else 1.0)
        return max(found)

    @property
    def shards(self) -> int:
        """Shards, each of which has a leader; the fleet's are followers too.

        Raises
        ------
        UserError
            The fleet has other numbers of them.
        """
        copies, processes = self.job.replication, self.fleet.shards
        if processes % copies:
            raise UserError(
                f"replication: {copies} needs {copies} processes for each shard, and the fleet has {processes} in all"
            )
        return processes // copies

    @property
    def in_lockstep(self) -> bool:
        """Whether all workers exchange at the same time."""
        return self.job.strategy.staleness == 0 or self.job.strategy.grouped

    @property
    def passes(self) -> Pass | None:
        """Its passes; None where the strategy is no batch method.

        Raises
        ------
        UserError
            The number of samples in a pass is not known.
        """
        strategy = self.job.strategy
        if not isinstance(strategy, Sandblaster):
            return None
        samples = strategy.batch if isinstance(strategy.batch, int) else self.samples
        if not samples:
            raise UserError("a pass has all training samples, and their number is not known: give --samples")
        vectors = 2 * strategy.history * 4 * self.parameters / self.shards
        program_s = self.costs.program_s + vectors * self.costs.program_byte_s
        portions = math.ceil(samples / strategy.portion)
        return Pass(portions, strategy.bundle, strategy.portion, strategy.backups, program_s)

    @property
    def slowdown(self) -> float:
        """See `Costs`."""
        return self.costs.lockstep_slowdown if self.in_lockstep else self.costs.slowdown

    def _plan(self, schedule: ExchangeSchedule) -> Schedule:
        job, (steps, kind, beside) = self.job, schedule.arrays()
        batch, strategy = job.samples_at_once, job.strategy
        size = batch  # of a batch method, which has no leases of data
        if not isinstance(strategy, Sandblaster):
            size = lease_size(job, self.samples) if self.samples else strategy.lease or 64 * strategy.clock_samples
        return Schedule(
            steps=steps,
            kind=kind,
            beside=beside,
            exchanges=len(steps),
            lease=max(1, round(size / batch)),
            batch=batch,
            paced_per_s=LEASES_PER_S,
            few=FEW,
            ahead=schedule.ahead,
            begins=schedule.begins,
            bound=schedule.bound,
            quorum=schedule.quorum,
            grace=schedule.grace,
            grace_s=schedule.grace_s,
            sum_s=schedule.sum_s,
            steps_left=self.steps_left,
            until_s=self.seconds,
            warm_s=self.warm_s,
        )

    @property
    def total_samples(self) -> int | None:
        """Samples at which the job ends; None where it has no such limit, or the training set is not known."""
        if self.endless:
            return None
        limits = self.job.limits
        found = [] if limits.samples is None else [limits.samples]
        if limits.epochs is not None and self.samples:
            found.append(math.ceil(limits.epochs * self.samples))
        return min(found) if found else None

    @property
    def steps_left(self) -> int:
        """Mini-batches until the job's end."""
        total = self.total_samples
        return UNLIMITED if total is None else max(1, math.ceil(total / self.job.samples_at_once))

    def _service(self, schedule: ExchangeSchedule, machines: np.ndarray, places: list[int]) -> Service:
        """Costs of an exchange with one shard that stands for all: that on the host with the slowest link a byte."""
        job, fleet, costs = self.job, self.fleet, self.costs
        hosts = [group for group in fleet.groups if group.shards]
        host = max(hosts, key=lambda group: group.shards / group.crosses)
        share = max(1.0, host.shards / job.replication) / self.shards
        same = [group for group in hosts if host.host is not None and group.host == host.host]
        beside = sum(group.machines * group.shards for group in same) if same else host.shards
        station = _place(fleet, host, places)
        free = 0.0 if schedule.sum_s > 0 else 1.0  # a sum among workers costs nothing at the shards
        factor = free * (costs.shared if all_local(fleet) else 1.0)
        calls = factor * (costs.rounds if schedule.quorum else 1.0)
        asks = 0.0 if schedule.at_once else calls
        served_s = 0.0 if math.isinf(host.crosses) else self.slowdown / host.crosses
        leaders, numbers = math.ceil(beside / job.replication), factor * schedule.numbers
        apart = job.replication > 1 and (len(hosts) > 1 or hosts[0].machines > 1)
        return Service(
            pushed=schedule.pushed,
            fetched=schedule.fetched,
            asked=free * ASKED * self.shards,
            served=share * (1 - host.workers / fleet.workers) if host.link is not None else 0.0,
            served_s=served_s,
            push_s=(calls * costs.push_call_s + numbers / self.shards * costs.push_number_s) / host.speed,
            fetch_s=(asks * costs.fetch_call_s + numbers / self.shards * costs.fetch_number_s) / host.speed,
            follow_s=4 * host.latency + schedule.pushed / self.shards * served_s if apart else 0.0,
            client_push_s=calls * self.shards * costs.client_call_s + numbers * costs.client_number_s,
            client_ask_s=asks * self.shards * costs.client_call_s,
            client_fetch_s=numbers * costs.client_number_s,
            wake_s=costs.wake_s,
            trips=free * (costs.lockstep_trips if self.in_lockstep else costs.trips),
            shard_on=_queues(machines, station),
            coordinator_on=_queues(machines, _place(fleet, fleet.leader, places)),
            leaders=leaders,
            followers=beside - leaders,
            lease_s=costs.lease_s / max(LEAST_LEFT, fleet.leader.speed - costs.background(job, fleet.workers)),
            joined_s=costs.join_s / fleet.leader.speed,
            coordinator_latency_s=fleet.leader.latency - host.latency,
        )

    def _failures(self) -> Failures:
        fleet, job = self.fleet, self.job
        hosts = [group for group in fleet.groups if group.shards]
        rates = [group.machines / group.life for group in hosts if group.life is not None]
        held = 4 * self.parameters / self.shards
        kills = {f"{role}_kill_s": self.kills.get(role, NEVER) for role in KILLS}
        return Failures(
            shard_life_s=1 / sum(rates) if rates else NEVER,
            shard_failover_s=self.failover_s["shard"],
            keeps=job.replication > 1,
            coordinator_life_s=NEVER if fleet.leader.life is None else fleet.leader.life,
            coordinator_failover_s=self.failover_s["coordinator"],
            snapshot_every_s=job.snapshots.every_s or NEVER,
            snapshot_s=held * self.costs.snapshot_byte_s,
            share=min(1.0, max(group.shards for group in hosts) / self.shards),
            fence_s=job.deadlines.beat_s,
            **kills,
        )

    @property
    def failover_s(self) -> dict[str, float]:
        """Seconds from a failure until the role serves again, by role.

        A follower serves once the leader's lease has ended, of which half has passed on average, or once the process is
        back, whichever comes first.
        """
        fleet, costs, job = self.fleet, self.costs, self.job
        workers = [group.returns for group in fleet.groups if group.workers]
        shard_s = max(group.returns for group in fleet.groups if group.shards) + costs.start_s
        shard_s += 4 * self.parameters / self.shards * costs.restore_byte_s
        if job.replication > 1:
            shard_s = min(shard_s, LEASE_LEFT * job.deadlines.lease_s + costs.promote_s)
        return {
            "worker": max(workers) + costs.start_s,
            "shard": shard_s,
            "coordinator": fleet.leader.returns + costs.coordinator_start_s,
        }


def all_local(fleet: Fleet) -> bool:
    """Whether all processes are on one machine, and exchange through shared memory."""
    hosts = {group.host for group in fleet.groups}
    one = len(fleet.groups) == 1 and fleet.groups[0].machines == 1
    return (one or (len(hosts) == 1 and None not in hosts)) and all(group.link is None for group in fleet.groups)


def _spread(fleet: Fleet, costs: Costs) -> float:
    """Of a mini-batch's time, with the operating system's: the mean over the workers, as one table stands for all."""
    found = 0.0
    for group in fleet.groups:
        if group.workers and group.step is not None:
            found += group.machines * group.workers * math.hypot(group.spread, costs.jitter_s / group.step)
    return found / fleet.workers


def _machines(fleet: Fleet, costs: Costs) -> tuple[np.ndarray, list[int]]:
    """Records of all machines, and the first one of each group; then one of each host that several groups share."""
    hosts = _hosts(fleet)
    count = sum(group.machines for group in fleet.groups)
    machines = np.zeros(count + len(hosts), MACHINE)
    machines["life_s"] = NEVER
    places, place, worker = [], 0, 0
    for group in fleet.groups:
        own = slice(place, place + group.machines)
        places.append(place)
        machines["first"][own] = worker + group.workers * np.arange(group.machines)
        machines["workers"][own] = group.workers
        machines["life_s"][own] = NEVER if group.life is None or not group.workers else group.life
        machines["returns_s"][own] = group.returns + costs.start_s
        processes = group.workers + group.shards + _leads(fleet, group)
        machines["slower"][own] = 1 / group.together
        machines["processors"][own] = 0 if group.host is not None else _queued(group, processes)
        place, worker = place + group.machines, worker + group.machines * group.workers
    for number, host in enumerate(hosts):
        mine = [group for group in fleet.groups if group.host == host]
        processes = sum(one.machines * (one.workers + one.shards) + _leads(fleet, one) for one in mine)
        machines[count + number]["slower"] = 1 / mine[0].together
        machines[count + number]["processors"] = _queued(mine[0], processes)
    return machines, places


def _station(fleet: Fleet, host: str) -> int:
    """The record of a machine that several groups share."""
    return sum(group.machines for group in fleet.groups) + _hosts(fleet).index(host)


def _place(fleet: Fleet, group: MachineGroup, places: list[int]) -> int:
    """The record of the machine whose processors a group's first one uses."""
    return _station(fleet, group.host) if group.host is not None else places[fleet.groups.index(group)]


def _queues(machines: np.ndarray, station: int) -> int:
    """The machine where processes queue for its processors; -1 where they do not."""
    return station if machines[station]["processors"] else -1


def _hosts(fleet: Fleet) -> list[str]:
    """Machines that several groups share."""
    return list(dict.fromkeys(group.host for group in fleet.groups if group.host is not None))


def _leads(fleet: Fleet, group: MachineGroup) -> int:
    return int(group is fleet.leader)


def _queued(group: MachineGroup, processes: int) -> int:
    """Processors that so many processes queue for; 0: there are enough, and each is as fast beside others as alone."""
    alone = group.together == 1 or processes == 1
    if group.processors is None or (group.processors >= processes and alone):
        return 0
    return min(group.processors, MOST_PROCESSORS)


def _replicas(scenario: Scenario, machines: np.ndarray, places: list[int]) -> np.ndarray:
    """Records of all workers."""
    fleet = scenario.fleet
    replicas = np.zeros(fleet.workers, REPLICA)
    replicas["fetched"] = replicas["older"] = -1
    shards_latency_s = max(group.latency for group in fleet.groups if group.shards)
    random = np.array([scenario.seed ^ 0x5DEECE66D], np.uint64)
    begun = 0
    for group, place in zip(fleet.groups, places, strict=True):
        if not group.workers:
            continue
        own = slice(begun, begun + group.machines * group.workers)
        numbers = np.repeat(np.arange(group.machines), group.workers)
        assert group.step is not None
        factors = _machine_factors(group, random)[numbers]
        local = group.shards / fleet.shards
        replicas["station"][own] = place + numbers if group.host is None else _station(fleet, group.host)
        replicas["step_s"][own] = group.step * factors
        replicas["busy_s"][own] = group.step * group.busy * factors
        replicas["own"][own] = 1 - local
        replicas["slower"][own] = 1 / group.speed
        replicas["link_s"][own] = 0.0 if math.isinf(group.crosses) else scenario.slowdown / group.crosses
        replicas["latency_s"][own] = 0.0 if local == 1 else group.latency + shards_latency_s
        begun += group.machines * group.workers
    return replicas


def _machine_factors(group: MachineGroup, random: np.ndarray) -> np.ndarray:
    """What each machine's mini-batches take, as multiples of the group's mean, (machines,)."""
    table = lognormal(group.across)
    factors = (
        np.array([drawn(random, table) for _ in range(group.machines)]) if group.across else np.ones(group.machines)
    )
    if group.slow is not None:
        numbers = np.arange(group.machines)
        slow = np.floor((numbers + 1) * group.slow.share) > np.floor(numbers * group.slow.share)
        factors = np.where(slow, factors * group.slow.factor, factors)
    return factors
