"""A plan: the job, the faults and the moments of a simulation, all drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .jobs import JOBS

BATCHES = 200
"""Mini-batches during which faults begin."""
MACHINES = ("leader-0", "leader-1", "shard-0", "shard-1", "shard-2", "shard-3", "worker-0", "worker-1", "worker-2")
COORDINATORS = ("coordinator-0", "coordinator-1", "coordinator")
KINDS = {
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
"""Kinds of faults, each with its weight; an outage is drawn for itself."""
OUTAGES = 0.05
"""Share of the seeds that have an outage."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    kind
        A name of `KINDS`. kill: SIGKILL; fail: power loss of its machine; both: SIGKILL
        of a shard's leader and follower; pause: SIGSTOP, and SIGCONT later; cut: a
        link; break: all connections of a link; slow: the network; full: the disk; away: the registry does not answer;
        outage: power loss of all machines, then all programs start again;
        wall: a jump of the wall clock; scale: another number of shards; signal: SIGTERM.
    batches, after_s
        It begins so many seconds after this number of mini-batches was computed.
    target, other
        Names of processes; "leader-N": the one that serves shard N, "follower-N": its follower, "coordinator": the one
        that leads. Of an outage: whether the registry's content is "kept" or "lost".
    seconds
        How long it lasts, or until the process starts again.
    both
        Of a cut: in both directions.
    """

    kind: str
    batches: int
    after_s: float
    target: str
    other: str = ""
    seconds: float = 0.0
    both: bool = True

    def __str__(self) -> str:
        parts = [f"{self.kind} {self.target}"]
        if self.other:
            parts.append(f"{'and' if self.both else 'towards'} {self.other}")
        return f"at mini-batch {self.batches} + {1000 * self.after_s:.1f} ms: {' '.join(parts)}, {self.seconds:.3f} s"


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
    """

    seed: int
    job: str
    faults: tuple[Fault, ...]
    preempt: float
    delay_s: float
    batch_s: float
    drift: float

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.job}; switches {self.preempt}, delay {1000 * self.delay_s:g} ms, "
            f"mini-batch {1000 * self.batch_s:g} ms"
        ]
        return "\n".join([*lines, *(f"  {number}: {fault}" for number, fault in enumerate(self.faults))])


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(f"plan {seed}")
    job = list(JOBS)[seed % len(JOBS)]
    moments = sorted(_moments(draw, 4 + int(draw.expovariate(0.7))))
    at_one_shard = draw.random() < 0.5
    near = _near(draw.randrange(2)) if at_one_shard else MACHINES
    batch_s = draw.choice([0.03, 0.005])
    faults = tuple(_fault(draw, batches, 10 * batch_s * after, near) for batches, after in moments)
    faults = tuple(sorted((*faults, *_outage(seed)), key=lambda fault: fault.batches))
    preempt, delay_s, drift = (draw.choice(of) for of in ([0.01, 0.05, 0.2], [0.0002, 0.001, 0.005], [0.0, 0.03]))
    return Plan(seed, job, faults, preempt, delay_s, batch_s, drift)


def _outage(seed: int) -> Iterator[Fault]:
    """The outage of a seed, where it has one; the draws of the other faults do not depend on it."""
    draw = random.Random(f"outage {seed}")
    if draw.random() < OUTAGES:
        yield Fault(
            "outage",
            draw.randrange(BATCHES // 4, BATCHES),
            draw.expovariate(10.0),
            draw.choice(["kept", "lost"]),
            seconds=draw.uniform(0.1, 2.0),
        )


def _moments(draw: random.Random, count: int) -> Iterator[tuple[int, float]]:
    """Moments: mini-batches, and the time after that in units of ten of them; half shortly after another one."""
    batches = draw.randrange(BATCHES)
    for _ in range(count):
        if draw.random() < 0.5:
            batches = draw.randrange(BATCHES)
        yield batches, draw.expovariate(1.0) * draw.choice([0.1, 1.0])


def _near(shard: int) -> tuple[str, ...]:
    """What takes part in the pushes to one shard."""
    return (f"leader-{shard}", f"follower-{shard}", f"leader-{shard}", "worker-0", "worker-1", "worker-2")


def _fault(draw: random.Random, batches: int, after_s: float, near: Sequence[str]) -> Fault:
    kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
    target = draw.choice(COORDINATORS) if draw.random() < 0.2 else draw.choice(near)
    short = draw.random() < 0.6
    if kind in ("kill", "fail"):
        return Fault(kind, batches, after_s, target, seconds=draw.expovariate(1 / 0.3))
    if kind == "both":
        return Fault(kind, batches, after_s, draw.choice(["0", "1"]), seconds=draw.expovariate(1 / 0.3))
    if kind == "pause":
        most_s = 13.0 if target in COORDINATORS else 3.0
        return Fault(kind, batches, after_s, target, seconds=draw.uniform(0, 0.3 if short else most_s))
    if kind in ("cut", "break"):
        other = draw.choice([one for one in (*COORDINATORS, *near) if one != target])
        return Fault(kind, batches, after_s, target, other, draw.uniform(0, 0.3 if short else 3.0), draw.random() < 0.5)
    if kind == "scale":
        return Fault(kind, batches, after_s, draw.choice(["3", "1", "2"]))
    if kind == "wall":
        return Fault(kind, batches, after_s, target, seconds=draw.choice([-1, 1]) * draw.uniform(1, 1e5))
    if kind == "signal":
        return Fault(kind, batches, after_s, target, seconds=draw.uniform(0, 1))
    return Fault(kind, batches, after_s, target, seconds=draw.uniform(0, 2))
