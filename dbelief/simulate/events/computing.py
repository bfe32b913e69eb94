"""Computing of a replica: segments of mini-batches, and processors that are queued for. Imports numba."""

from __future__ import annotations

import math
from typing import Any

from dbelief.arrays.jit import inlined

from .draws import drawn
from .event_queue import put
from .parts import COMPUTED_S, COORDINATOR_S, LEASES, PROCESSORS_S

JOIN, ASK, BEGIN, BARRIER, SEND = range(5)
"""Stages: what a replica does at its next event."""
NOTHING, EXCHANGE, FIRST_FETCH, OTHERS, WORK = range(5)
"""What a replica waits for: an exchange, before its next stage; the fetch of a lease's begin; slower replicas; leases.
"""


@inlined
def segment(world: Any, replicas: Any, who: int) -> Any:
    """Mini-batches of the segment that a replica computes next."""
    return min(world.plan.steps[replicas[who].place], replicas[who].left)


@inlined
def beside_of(world: Any, replicas: Any, who: int) -> Any:
    """Of them, those that the exchange before travels beside."""
    before = replicas[who].place - 1
    return min(world.plan.beside[before if before >= 0 else world.plan.exchanges - 1], segment(world, replicas, who))


@inlined
def on_processor(world: Any, machines: Any, machine: int, at_s: float, busy_s: float, whose: int) -> Any:
    """When so many processor seconds that are ready now are done, on the machine's processor that is free first.

    `whose` is the place in `totals` where they are counted. A processor that is idle has to be woken.
    """
    if busy_s == 0.0:
        return at_s
    many, free = machines[machine].processors, machines[machine].free_s
    first, others = 0, 0
    for place in range(many):
        others += free[place] > at_s
        if free[place] < free[first]:
            first = place
    if others - (free[first] > at_s) > 0:
        busy_s *= machines[machine].slower
    busy_s += world.service.wake_s if many == 0 or free[first] <= at_s else 0.0
    world.totals[whose] += busy_s
    if many == 0:
        return at_s + busy_s
    free[first] = max(at_s, free[first]) + busy_s
    return free[first]


@inlined
def leased(world: Any, machines: Any, at_s: float) -> Any:
    """When the coordinator has answered a request for a lease, after those that came before."""
    servers, service = world.servers, world.service
    begun_s = max(servers.coordinator_s, at_s)
    if service.coordinator_on >= 0:
        on, busy_s = service.coordinator_on, service.lease_s
        servers.coordinator_s = on_processor(world, machines, on, begun_s, busy_s, COORDINATOR_S)
    else:
        servers.coordinator_s = begun_s + service.lease_s
        world.totals[COORDINATOR_S] += service.lease_s
    world.totals[LEASES] += 1
    return servers.coordinator_s


@inlined
def compute(world: Any, replicas: Any, machines: Any, who: int, at_s: float, steps: int) -> Any:
    """When so many mini-batches are computed."""
    if steps == 0:
        return at_s
    replica, totals = replicas[who], world.totals
    factor = 1.0 + (drawn(world.random, world.step_table) - 1.0) / math.sqrt(steps)
    alone_s = replica.step_s * steps * factor
    away_s = (replica.step_s - replica.busy_s) * steps * factor
    busy_s = replica.busy_s * steps * factor + replica.received_s
    replica.received_s = 0.0
    totals[COMPUTED_S] += alone_s
    return on_processor(world, machines, replica.station, at_s, busy_s, PROCESSORS_S) + away_s


@inlined
def pass_barrier(world: Any, replicas: Any, machines: Any, queue: Any, who: int, at_s: float) -> None:
    """Compute the rest of a segment, once the exchange before has been answered and no replica is too far behind."""
    replica = replicas[who]
    replica.stage, replica.waits = BARRIER, NOTHING
    if replica.flying == 1:
        replica.waits, replica.since_s = EXCHANGE, at_s
    elif world.plan.bound >= 0 and replica.clock - world.servers.slowest > world.plan.bound:
        replica.waits, replica.since_s = OTHERS, at_s
    else:
        replica.stage = SEND
        if world.plan.ahead == 0:
            replica.base = replica.fetched
        rest = segment(world, replicas, who) - beside_of(world, replicas, who)
        put(queue, compute(world, replicas, machines, who, at_s, rest), who, replica.incarnation)


@inlined
def compute_head(world: Any, replicas: Any, machines: Any, queue: Any, who: int, at_s: float) -> None:
    """Compute what the exchange before travels beside."""
    beside, replica = beside_of(world, replicas, who), replicas[who]
    if world.plan.ahead == 1:
        replica.base = replica.fetched
    if beside == 0 and replica.flying == 0:
        pass_barrier(world, replicas, machines, queue, who, at_s)
    elif beside == 0:
        replica.stage, replica.waits, replica.since_s = BARRIER, EXCHANGE, at_s
    else:
        replica.stage = BARRIER
        put(queue, compute(world, replicas, machines, who, at_s, beside), who, replica.incarnation)
