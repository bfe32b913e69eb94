"""Faults that belong together, and are seldom drawn together: each scenario occurs in a share of the seeds.

The draws of a scenario depend on no other draws, and none depend on them: a new one leaves the other faults of all
seeds as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.simulation.models.jobs import HEARTBEAT_TIMEOUT_S, LEASE_TTL_S

from .fault import BATCHES, END_S, FEWEST, LAST, MACHINES, NEAR_END, Fault

SHARE = 0.05
"""Share of the seeds in which a scenario occurs."""


def scenarios(seed: int, job: str) -> Iterator[Fault]:
    """The faults of all scenarios of a seed."""
    for scenario in (_outage, _returning_worker, _returning_leader, _early_takeover, _failure_at_the_end):
        draw = random.Random(f"{scenario.__name__.strip('_')} {seed}")
        if draw.random() < SHARE:
            yield from scenario(draw)
    if job.startswith("hogwild"):
        yield from _resharding(random.Random(f"resharding {seed}"))
    if job.startswith("sync-"):
        yield from _failing_writer(random.Random(f"failing_writer {seed}"))
    if job == "tables" and (draw := random.Random(f"other_shards {seed}")).random() < 4 * SHARE:
        yield from _other_shards(draw)
    yield from _spares(seed)


def _outage(draw: random.Random) -> Iterator[Fault]:
    """All machines lose power."""
    batches, after_s = draw.randrange(BATCHES // 4, BATCHES), draw.expovariate(10.0)
    yield Fault("outage", batches, after_s, draw.choice(["kept", "lost"]), seconds=draw.uniform(0.1, 2.0))


def _returning_worker(draw: random.Random) -> Iterator[Fault]:
    """A worker that was suspended and is declared failed resumes while the coordinator reads its ledgers."""
    batches, after_s, worker = draw.randrange(BATCHES), draw.expovariate(10.0), f"worker-{draw.randrange(3)}"
    yield Fault("pause", batches, after_s, worker, seconds=HEARTBEAT_TIMEOUT_S - 0.1, until="Stats")


def _returning_leader(draw: random.Random) -> Iterator[Fault]:
    """A coordinator is suspended, another one leads and fails, and the first one resumes."""
    batches, after_s, seconds = draw.randrange(BATCHES), draw.expovariate(10.0), draw.uniform(2.3, 3.3) * LEASE_TTL_S
    fails_s = after_s + draw.uniform(1.1, 1.3) * LEASE_TTL_S
    yield Fault("pause", batches, after_s, "coordinator", seconds=seconds)
    yield Fault("kill", batches, fails_s, "coordinator", seconds=draw.uniform(1.0, 2.5) * LEASE_TTL_S)


def _early_takeover(draw: random.Random) -> Iterator[Fault]:
    """The coordinator fails when members have joined, and training has not started; a worker misses the takeover."""
    after_s, worker = draw.uniform(0.0, 0.5), f"worker-{draw.randrange(3)}"
    yield Fault("kill", 0, after_s, "coordinator", seconds=draw.uniform(0.0, 2.0) * LEASE_TTL_S)
    yield Fault("pause", 0, after_s, worker, seconds=draw.uniform(1.0, 1.8) * LEASE_TTL_S)


def _failure_at_the_end(draw: random.Random) -> Iterator[Fault]:
    """A shard fails while the job tests, writes a set and the model, or ends; its follower and a worker may, too."""
    kind, target = draw.choice([("kill", "leader-0"), ("kill", "leader-1"), ("both", "0"), ("both", "1")])
    after_s, worker = draw.uniform(0.0, END_S), f"worker-{draw.randrange(3)}"
    yield Fault(kind, LAST, after_s, target, seconds=draw.expovariate(1 / 0.3))
    if draw.random() < 0.5:
        yield Fault("kill", LAST, after_s + draw.uniform(0.0, 3.0), worker, seconds=draw.expovariate(1 / 0.3))


def _resharding(draw: random.Random) -> Iterator[Fault]:
    """Segments migrate while pushes without a lock are within them."""
    yield Fault("scale", draw.randrange(BATCHES), draw.expovariate(10.0), draw.choice(["1", "3"]))


def _other_shards(draw: random.Random) -> Iterator[Fault]:
    """Sets are written by another number of shards than that which the job is resumed on."""
    batches = draw.randrange(BATCHES // 2)
    yield Fault("scale", batches, 0.0, draw.choice(["1", "3"]))
    yield Fault("outage", batches + BATCHES // 4, draw.expovariate(2.0), "lost", seconds=draw.uniform(0.1, 1.0))


def _failing_writer(draw: random.Random) -> Iterator[Fault]:
    """A worker fails near the end of the job, when it writes the group's result or has just reported steps."""
    batches, seconds = LAST - draw.randrange(NEAR_END), draw.expovariate(1 / 0.3)
    method, worker = draw.choice(["Report", "Push", "Push"]), f"worker-{draw.randrange(3)}"
    late = method == "Report"
    yield Fault("kill", batches, 0.0, worker, seconds=seconds, method=method, client=True, late=late)


def _spares(seed: int) -> Iterator[Fault]:
    """Faults near the end of the job, where those before had no effect: their processes did not run."""
    draw = random.Random(f"spares {seed}")
    for batches in range(LAST - 20 * FEWEST, LAST, 20):
        target = draw.choice([name for name in MACHINES if not name.startswith("leader")])
        yield Fault("kill", batches, draw.expovariate(100.0), target, seconds=draw.expovariate(1 / 0.3), spare=True)
