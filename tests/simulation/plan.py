"""A plan: the job, the faults and the moments of a simulation, all drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .jobs import EPOCHS, JOBS
from .marks import SAMPLES

BATCHES = 160
"""Mini-batches during which most faults begin; a fifth begin before the first, and a fifth at the end of the job."""
LAST = EPOCHS * SAMPLES // 4 - 2
END_S = 1.5
"""Seconds after the last mini-batches in which a job tests, writes a set and the model, and ends."""
MACHINES = ("leader-0", "leader-1", "shard-0", "shard-1", "shard-2", "shard-3", "worker-0", "worker-1", "worker-2")
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
COORDINATORS = ("coordinator-0", "coordinator-1", "coordinator")
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
"""Kinds of faults, each with its weight; an outage is drawn for itself."""
OUTAGES = 0.05
"""Share of the seeds that have an outage."""
FEWEST = 3
"""Faults that have an effect in every seed."""


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
    method
        Where it is not "": the fault begins when the next message of this method arrives after that moment, at the two
        ends of its call. Where none arrives for `AWAITED` mini-batches, it begins then, at its targets.
    client
        Of a fault at a message: whether the client of the call is the target and the server the other one, else the
        server is the target.
    late
        Of a fault at a message: whether the message has been delivered when it begins, else it is lost with its call,
        or delayed with its link.
    spare
        Whether it begins only where fewer than `FEWEST` faults have had an effect.
    """

    kind: str
    batches: int
    after_s: float
    target: str
    other: str = ""
    seconds: float = 0.0
    both: bool = True
    method: str = ""
    client: bool = False
    late: bool = False
    spare: bool = False

    def __str__(self) -> str:
        target, other = self.target, self.other
        when = ""
        if self.method:
            when = f"{'after' if self.late else 'before'} the next message of {self.method}, "
            target, other = ("client", other and "server") if self.client else ("server", other and "client")
        parts = [f"{self.kind} {target}"]
        if other:
            parts.append(f"{'and' if self.both else 'towards'} {other}")
        moment = f"at mini-batch {self.batches} + {1000 * self.after_s:.1f} ms"
        spare = ", if few faults had an effect" if self.spare else ""
        return f"{moment}: {when}{' '.join(parts)}, {self.seconds:.3f} s{spare}"


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

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.job}; switches {self.preempt}, delay {1000 * self.delay_s:g} ms, "
            f"mini-batch {1000 * self.batch_s:g} ms, stalls {self.stall_rare}, "
            f"lease {self.lease or 'as usual'}, "
            f"distant links {self.far}"
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
    faults = tuple(sorted((*faults, *_outage(seed), *_spares(seed)), key=lambda fault: fault.batches))
    preempt, delay_s, drift = (draw.choice(of) for of in ([0.01, 0.05, 0.1], [0.0002, 0.001, 0.005], [0.0, 0.03]))
    stall_rare, lease = draw.choice([0.0, 0.03, 0.1]), draw.choice(JOBS[job].leases)
    far = draw.choice([0.0, 0.2])
    return Plan(seed, job, faults, preempt, delay_s, batch_s, drift, stall_rare, lease, far)


def _weights(draw: random.Random) -> dict[str, float]:
    """Weights of the kinds in one seed: some kinds are left out, so that others meet more often.

    Source: Groce et al., Swarm Testing (ISSTA 2012).
    """
    weights = {kind: weight * draw.choice([0, 1, 1, 4]) for kind, weight in KINDS.items()}
    return weights if sum(map(bool, weights.values())) > 1 else dict(KINDS)


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


def _spares(seed: int) -> Iterator[Fault]:
    """Faults near the end of the job, where those before had no effect: their processes did not run."""
    draw = random.Random(f"spares {seed}")
    for batches in range(LAST - 20 * FEWEST, LAST, 20):
        target = draw.choice([name for name in MACHINES if not name.startswith("leader")])
        yield Fault("kill", batches, draw.expovariate(100.0), target, seconds=draw.expovariate(1 / 0.3), spare=True)


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
