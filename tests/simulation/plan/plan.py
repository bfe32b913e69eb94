"""A plan: the job, the faults and the moments of a simulation, all drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.simulation.models.jobs import COORDINATORS, JOBS

from .fault import BATCHES, END_S, LAST, LEFT, MACHINES, NEAR_END, Fault
from .scenarios import scenarios

METHODS = {
    "Push": 3,
    "Exchange": 3,
    "Carry": 8,
    "Configure": 4,
    "Give": 4,
    "Snapshot": 3,
    "Restore": 2,
    "Operate": 2,
    "Stats": 1,
    "Pull": 1,
    "Join": 1,
    "Lease": 2,
    "Report": 2,
}
"""Methods at whose messages faults begin, each with its weight."""
AWAITED = 40
"""Mini-batches for which a fault waits for the message at which it begins."""
AT_MESSAGES = ("kill", "fail", "pause", "cut", "break")
WITHOUT_SHARDS = ("coordinator", "coordinator", "coordinator-0", "coordinator-1", "worker-0", "worker-1", "worker-2")
KINDS: dict[str, float] = {
    "kill": 5,
    "fail": 2,
    "both": 1,
    "pause": 4,
    "cut": 4,
    "break": 4,
    "slow": 1,
    "full": 1,
    "away": 1,
    "wall": 1,
    "scale": 3,
    "signal": 1,
    "outage": 0,
}
"""Kinds of faults, each with its weight; an outage is a scenario (see `scenarios`)."""


class Ways(NamedTuple):
    """Ways of messages between workers and shards, besides gRPC.

    Attributes
    ----------
    shared_memory
        Whether all processes share memory, as on one host: pushes and records go over local streams.
    direct_streams
        Whether they open direct streams, as between hosts.
    """

    shared_memory: bool = False
    direct_streams: bool = False

    @property
    def options(self) -> str:
        """Options of the command that replays a seed."""
        return " --shared-memory" * self.shared_memory + " --direct-streams" * self.direct_streams


GRPC = Ways()
"""All messages go over gRPC."""


@dataclass(frozen=True)
class Plan:
    """One simulation.

    Attributes
    ----------
    seed
        Of every choice in it.
    job
        A name of `JOBS`.
    faults
        In the order in which they begin.
    preempt
        Probability of a task switch at each operation.
    delay_s
        Mean delay of a message in seconds.
    batch_s
        Mean time of a mini-batch in seconds.
    drift
        Most that a process's clock is too fast or too slow, as a share.
    stall_rare
        See `Scheduler`.
    lease
        Samples of a lease; None: the job's default, which is small.
    far
        See `SimulatedNetwork`.
    ways
        Ways of messages between workers and shards, besides gRPC; not drawn.
    """

    seed: int
    job: str
    faults: tuple[Fault, ...]
    preempt: float
    delay_s: float
    batch_s: float
    drift: float
    stall_rare: float
    lease: int | None
    far: float
    ways: Ways = GRPC

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.job}; switches {self.preempt}, delay {1000 * self.delay_s:g} ms, "
            f"mini-batch {1000 * self.batch_s:g} ms, stalls {self.stall_rare}, "
            f"lease {self.lease or 'as usual'}, "
            f"distant links {self.far}{', shared memory' * self.ways.shared_memory}"
            f"{', direct streams' * self.ways.direct_streams}"
        ]
        return "\n".join([*lines, *(f"  {number}: {fault}" for number, fault in enumerate(self.faults))])


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(f"plan {seed}")
    job = list(JOBS)[seed % len(JOBS)]
    count = 4 + int(draw.expovariate(0.7))
    near = draw.choice([MACHINES, MACHINES, _near(0), _near(1), _near(draw.randrange(2)), WITHOUT_SHARDS])
    batch_s = draw.choice([0.03, 0.005])
    weights = _weights(draw)
    moments = sorted(_moments(draw, count, batch_s))
    faults = tuple(_fault(draw, weights, batches, after_s, near) for batches, after_s in moments)
    faults = tuple(_at_message(draw, fault) if draw.random() < 0.5 else fault for fault in faults)
    faults = tuple(sorted((*faults, *scenarios(seed, job)), key=lambda fault: fault.batches))
    faults = tuple(replace(fault, batches=_stretched(fault.batches, JOBS[job].stretch)) for fault in faults)
    preempt, delay_s, drift = (draw.choice(of) for of in ([0.01, 0.05, 0.1], [0.0002, 0.001, 0.005], [0.0, 0.03]))
    stall_rare, lease = draw.choice([0.0, 0.03, 0.1]), draw.choice(JOBS[job].leases)
    far = draw.choice([0.0, 0.2])
    return Plan(seed, job, faults, preempt, delay_s, batch_s, drift, stall_rare, lease, far)


def _stretched(batches: int, stretch: float) -> int:
    """The same moment of a job with so many times the mini-batches; moments at its end are as far from it."""
    if batches > LAST - NEAR_END:
        return batches + round((LAST + LEFT) * (stretch - 1))
    return round(batches * stretch)


def _weights(draw: random.Random) -> dict[str, float]:
    """Weights of the kinds in one seed: some kinds are left out, so that others meet more often.

    Source: Groce et al., Swarm Testing (ISSTA 2012).
    """
    weights = {kind: weight * draw.choice([0, 1, 1, 4]) for kind, weight in KINDS.items()}
    return weights if sum(map(bool, weights.values())) > 1 else dict(KINDS)


def _moments(draw: random.Random, count: int, batch_s: float) -> Iterator[tuple[int, float]]:
    """Moments: mini-batches, and seconds after that; half shortly after another one, or while a job ends."""
    batches = draw.randrange(BATCHES)
    for _ in range(count):
        if draw.random() < 0.5:
            batches = draw.choices([0, draw.randrange(BATCHES), LAST], [2, 6, 2])[0]
        shortly_s = 10 * batch_s * draw.expovariate(1.0) * draw.choice([0.1, 1.0])
        yield batches, draw.uniform(0, END_S) if batches == LAST and draw.random() < 0.5 else shortly_s


def _near(shard: int) -> tuple[str, ...]:
    """What takes part in the pushes to one shard."""
    return (f"leader-{shard}", f"follower-{shard}", f"leader-{shard}", "worker-0", "worker-1", "worker-2")


def _fault(draw: random.Random, weights: dict[str, float], batches: int, after_s: float, near: Sequence[str]) -> Fault:
    kind = draw.choices(list(weights), list(weights.values()))[0]
    target = draw.choice(COORDINATORS) if draw.random() < 0.2 else draw.choice(near)
    short = draw.random() < 0.6
    if kind in ("kill", "fail"):
        away_s = draw.uniform(2, 7) if target in COORDINATORS and not short else draw.expovariate(1 / 0.3)
        return Fault(kind, batches, after_s, target, seconds=away_s)
    if kind == "both":
        return Fault(kind, batches, after_s, draw.choice(["0", "1"]), seconds=draw.expovariate(1 / 0.3))
    if kind == "pause":
        most_s = draw.choice([4.5, 10.0]) if target in COORDINATORS else 4.0
        return Fault(kind, batches, after_s, target, seconds=draw.uniform(0, 0.3 if short else most_s))
    if kind in ("cut", "break"):
        other = draw.choice([one for one in (*COORDINATORS, *near) if one != target])
        return Fault(kind, batches, after_s, target, other, draw.uniform(0, 0.3 if short else 4.0), draw.random() < 0.5)
    if kind == "scale":
        return Fault(kind, batches, after_s, draw.choice(["3", "1", "2"]))
    if kind == "wall":
        return Fault(kind, batches, after_s, target, seconds=draw.choice([-1, 1]) * draw.uniform(1, 1e5))
    if kind == "signal":
        return Fault(kind, batches, after_s, target, seconds=draw.uniform(0, 1))
    # Where a disk is full before the job has begun, the job fails, and the seed shows nothing.
    return Fault(kind, max(1, batches), after_s, target, seconds=draw.uniform(0, 2))


def _at_message(draw: random.Random, fault: Fault) -> Fault:
    """The same fault, at a message of a call of its two targets, where its kind has such targets."""
    if fault.kind not in AT_MESSAGES:
        return fault
    method = draw.choices(list(METHODS), list(METHODS.values()))[0]
    return replace(fault, method=method, client=draw.random() < 0.5, late=draw.random() < 0.5)
