"""What a simulation gives: rates, staleness, bytes, losses, what is used most, and money."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .description import Scenario
from .events.event_loop import simulate
from .events.parts import (
    BINS,
    COMPUTED_S,
    COORDINATOR_FAILURES,
    COORDINATOR_S,
    ENDED_S,
    EVENTS,
    LAST_S,
    LEASES,
    LINK_IN_S,
    LINK_OUT_S,
    LOST_SAMPLES,
    OWN_LINK_S,
    PROCESSORS_S,
    PUSHES,
    RECEIVED,
    ROLLED_BACK,
    ROUNDS,
    SAMPLES,
    SENT,
    SHARD_FAILURES,
    SHARD_S,
    SHARDS_S,
    STALENESS,
    WORKER_FAILURES,
    World,
)
from .events.passes import simulate_passes

QUANTILES = (0.5, 0.9, 0.99)
SATURATED = 0.95
"""Use from which on more replicas bring little."""
KEPT = 0.9
"""Share of the speed before a failure at which it is over."""


@dataclass(frozen=True)
class SimulatedOutcome:
    """Figures of a simulation, from its warm-up to its end.

    Attributes
    ----------
    seconds
        That were counted; to the job's last sample where that is in them.
    over
        Whether the job's samples were all trained.
    samples, samples_per_s, lost_samples
        Acknowledged; of these, a second; computed or pushed, and lost by failures.
    goodput
        Samples that count, of those that were computed.
    pushes, rounds, leases, staleness_mean, staleness
        Numbers; staleness of a push in versions (with a quorum in rounds): mean, and quantiles by `QUANTILES`.
    sent_per_s, received_per_s
        Bytes a second of all workers.
    computing
        Share of the workers' time that is computing.
    processors
        In use, means: by all workers, by all shards and followers.
    use
        By resource: share of its time, 0 to 1.
    saturates
        The resource that is used most.
    coordinator_at
        Workers at which the coordinator uses a processor wholly.
    failures, failover_s
        By role: how many, and seconds from one until it serves again.
    time_s
        Seconds to the job's samples; None where it has no such limit.
    price_per_h, price
        Of all machines; to the job's samples, or of the simulated time.
    events
        Simulated events.
    """

    workers: int
    seconds: float
    over: bool
    samples: float
    samples_per_s: float
    lost_samples: float
    goodput: float
    pushes: int
    rounds: int
    leases: int
    staleness_mean: float
    staleness: tuple[int, ...]
    sent_per_s: float
    received_per_s: float
    computing: float
    processors: dict[str, float]
    use: dict[str, float]
    saturates: str
    coordinator_at: int
    failures: dict[str, int]
    failover_s: dict[str, float]
    time_s: float | None
    price_per_h: float
    price: float
    events: int

    def described(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def run(scenario: Scenario) -> tuple[SimulatedOutcome, World]:
    """Simulate.

    Raises
    ------
    UserError
        The job's strategy is not simulated.
    """
    world = scenario.world()
    if (passes := scenario.passes) is None:
        simulate(world)
    else:
        simulate_passes(world, passes)
    return outcome_of(scenario, world), world


def outcome_of(scenario: Scenario, world: World) -> SimulatedOutcome:
    """The figures of a simulation that has ended."""
    record = world.world[0]
    totals = [float(value) for value in record["totals"]]
    over = scenario.passes is None and int(record["servers"]["steps_left"]) <= 0
    over = over and not bool(world.replicas["flying"].any())
    end_s = totals[LAST_S] if over else totals[ENDED_S]
    seconds = max(end_s - scenario.warm_s, 1e-9)
    rate = totals[SAMPLES] / seconds
    use = _use(scenario, totals, seconds, world)
    total = scenario.total_samples
    time_s = None if total is None else end_s if over else total / rate if rate else math.inf
    price_per_h = scenario.fleet.price
    computed = totals[SAMPLES] + totals[LOST_SAMPLES]
    summed = totals[ROUNDS] * scenario.schedule.summed
    return SimulatedOutcome(
        workers=scenario.fleet.workers,
        seconds=seconds,
        over=over,
        samples=totals[SAMPLES],
        samples_per_s=rate,
        lost_samples=totals[LOST_SAMPLES] + totals[ROLLED_BACK],
        goodput=max(0.0, totals[SAMPLES] - totals[ROLLED_BACK]) / computed if computed else 1.0,
        pushes=int(totals[PUSHES]),
        rounds=int(totals[ROUNDS]),
        leases=int(totals[LEASES]),
        staleness_mean=totals[STALENESS] / totals[PUSHES] if totals[PUSHES] else 0.0,
        staleness=_quantiles(record["staleness"]),
        sent_per_s=(totals[SENT] + summed) / seconds,
        received_per_s=(totals[RECEIVED] + summed) / seconds,
        computing=min(1.0, totals[COMPUTED_S] / (seconds * scenario.fleet.workers)),
        processors=_processors(scenario, totals, seconds),
        use=use,
        saturates=max(use, key=lambda name: use[name]),
        coordinator_at=scenario.costs.saturation(scenario.job),
        failures={
            "worker": int(totals[WORKER_FAILURES]),
            "shard": int(totals[SHARD_FAILURES]),
            "coordinator": int(totals[COORDINATOR_FAILURES]),
        },
        failover_s=scenario.failover_s,
        time_s=time_s,
        price_per_h=price_per_h,
        price=price_per_h * (time_s if time_s is not None else seconds) / 3600,
        events=int(totals[EVENTS]),
    )


def _use(scenario: Scenario, totals: list[float], seconds: float, world: World) -> dict[str, float]:
    """Share of its time in which each resource is used."""
    fleet, costs = scenario.fleet, scenario.costs
    leases_per_s = totals[LEASES] / seconds
    use = {
        "coordinator": costs.coordinator_share(scenario.job, fleet.workers, leases_per_s) / fleet.leader.speed,
        "shards": totals[SHARD_S] / seconds,
        "links of shards": max(totals[LINK_IN_S], totals[LINK_OUT_S]) / seconds,
        "links of workers": totals[OWN_LINK_S] / seconds / fleet.workers,
        "computing of workers": totals[COMPUTED_S] / seconds / fleet.workers,
    }
    shared = int(world.machines["processors"].sum())
    if shared:
        used_s = totals[PROCESSORS_S] + totals[SHARDS_S] + totals[COORDINATOR_S]
        use["processors"] = used_s / seconds / shared
    return {name: min(1.0, share) for name, share in use.items()}


def _processors(scenario: Scenario, totals: list[float], seconds: float) -> dict[str, float]:
    """Processors in use."""
    shards_s = totals[SHARDS_S] or scenario.fleet.shards * totals[SHARD_S]
    return {"workers": totals[PROCESSORS_S] / seconds, "shards": shards_s / seconds}


def _quantiles(histogram: np.ndarray) -> tuple[int, ...]:
    """Staleness by `QUANTILES`."""
    total = int(histogram.sum())
    if not total:
        return tuple(0 for _ in QUANTILES)
    places = np.searchsorted(np.cumsum(histogram), [math.ceil(share * total) for share in QUANTILES])
    return tuple(int(place) for place in places)


def rates(world: World) -> np.ndarray:
    """Samples a second in each part of the time, (BINS,)."""
    record = world.world[0]
    found: np.ndarray = record["by_time"] / (float(record["plan"]["until_s"]) / BINS)
    return found
