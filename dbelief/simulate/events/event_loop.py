"""Replicas that do not wait for each other, through shards: one event loop; importing this module imports numba.

A replica asks the coordinator for a lease, and computes it in segments of mini-batches. Each segment ends with an
exchange: a push, a fetch, or both in one call. The exchange travels while a part of the next segment is computed, or is
waited for. It passes, in order of arrival,

    its own link, and the link of a shard's host     bytes at their rates, the slower one counts
    a shard                                          processor seconds of the call, and of its bytes
    the same links in the other direction

Shards are alike: each has the same part of every exchange, and one stands for all. Who shares a machine's processors
queues for them in order of arrival. Failures, snapshot sets and their times are events too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dbelief.arrays.jit import inlined, jit

from .computing import (
    ASK,
    BARRIER,
    BEGIN,
    EXCHANGE,
    FIRST_FETCH,
    JOIN,
    NOTHING,
    OTHERS,
    SEND,
    WORK,
    beside_of,
    compute_head,
    leased,
    pass_barrier,
    segment,
)
from .draws import drawn
from .event_queue import put, take
from .exchanges import (
    ANSWERED,
    FAILED,
    FENCED,
    FETCH,
    GRACE,
    HELD,
    LOST,
    ON_WAY,
    PUSH,
    acknowledge,
    end_round,
    exchange,
    record,
    serve,
    server_event,
)
from .parts import (
    COORDINATOR_FAILURES,
    ENDED_S,
    EVENTS,
    HISTOGRAM,
    LEASED_S,
    LOST_SAMPLES,
    ROLLED_BACK,
    SHARD_FAILURES,
    TOTALS,
    WAITED_S,
    WORKER_FAILURES,
    World,
)

SHARD, COORDINATOR, SET, WARM = range(4)
"""Events of servers: a failure of a shard, of the coordinator; a snapshot set; the begin of counting."""
BY_CHANCE, ON_PURPOSE = range(2)
"""Why something fails."""


def simulate(world: World) -> None:
    """Simulate until the time of the plan, or until the job's samples are trained.

    Cost: two to five events for an exchange, some 0.3 us each at 10,000 replicas.
    """
    _run(*world)


# Numbers of events: replicas; their exchanges; their fences; machines; shard, coordinator, snapshot set, end of the
# time that is not counted, grace of a round.


@jit
def _run(worlds: Any, replicas: Any, machines: Any, queue: Any, trace: Any) -> None:
    world = worlds[0]
    many, shards = len(replicas), server_event(replicas, machines, SHARD)
    _begin(world, replicas, machines, queue, shards)
    events, now_s = 0, 0.0
    while queue[0].what > 0:
        at_s, who, incarnation = take(queue)
        if at_s > world.plan.until_s:
            break
        now_s = at_s
        events += 1
        if who < 3 * many:
            if incarnation == replicas[who % many].incarnation:
                _of_replica(world, replicas, machines, queue, trace, who // many, who % many, at_s)
        elif who < shards:
            _fail(world, replicas, machines, queue, trace, who - 3 * many, at_s)
            if incarnation == BY_CHANCE:
                _next_failure(
                    world, queue, who, machines[who - 3 * many].life_s, at_s + machines[who - 3 * many].returns_s
                )
        elif who == shards + GRACE:
            if incarnation == world.servers.version:
                end_round(world, replicas, machines, queue, trace, at_s)
        elif who == shards + WARM:
            _forget(world, replicas)
            events = 0
        else:
            _of_server(world, who - shards, at_s)
            if incarnation == BY_CHANCE:
                _next_of_server(world, queue, who, shards, at_s)
    world.totals[EVENTS] = events
    world.totals[ENDED_S] = now_s if queue[0].what == 0 else world.plan.until_s


@inlined
def _of_replica(
    world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, kind: int, who: int, at_s: float
) -> None:
    """An event of a replica, of its exchange, or its fence."""
    if kind == 0:
        _proceed(world, replicas, machines, queue, trace, who, at_s)
    elif kind == 2:
        if replicas[who].served == FAILED:
            replicas[who].served = FENCED
            world.servers.members -= 1
            if world.plan.quorum > 0 and world.servers.held >= max(1, world.servers.members):
                end_round(world, replicas, machines, queue, trace, at_s)
    elif replicas[who].served == ON_WAY:
        serve(world, replicas, machines, queue, trace, who, at_s)
    else:
        _answered(world, replicas, machines, queue, trace, who, at_s)


@inlined
def _forget(world: Any, replicas: Any) -> None:
    """Count anew: what came before is not counted."""
    for place in range(TOTALS):
        world.totals[place] = 0.0
    for place in range(HISTOGRAM):
        world.staleness[place] = 0
    for who in range(len(replicas)):
        replicas[who].samples = 0.0


@inlined
def _begin(world: Any, replicas: Any, machines: Any, queue: Any, shards: int) -> None:
    """The first events."""
    world.servers.steps_left = world.plan.steps_left
    many, failures = len(replicas), world.failures
    for who in range(many):
        replicas[who].fresh, replicas[who].served = 1, FENCED
        put(queue, 0.0, who, 0)
    for machine in range(len(machines)):
        _next_failure(world, queue, 3 * many + machine, machines[machine].life_s, 0.0)
    for server in range(3):
        _next_of_server(world, queue, shards + server, shards, 0.0)
    if failures.worker_kill_s < np.inf:
        put(queue, failures.worker_kill_s, 3 * many, ON_PURPOSE)
    if failures.shard_kill_s < np.inf:
        put(queue, failures.shard_kill_s, shards + SHARD, ON_PURPOSE)
    if failures.coordinator_kill_s < np.inf:
        put(queue, failures.coordinator_kill_s, shards + COORDINATOR, ON_PURPOSE)
    put(queue, world.plan.warm_s, shards + WARM, 0)


@inlined
def _next_failure(world: Any, queue: Any, who: int, life_s: float, from_s: float) -> None:
    """Set when what has such a mean life fails next."""
    if life_s < np.inf:
        put(queue, from_s + life_s * drawn(world.random, world.life_table), who, 0)


@inlined
def _next_of_server(world: Any, queue: Any, who: int, shards: int, at_s: float) -> None:
    """Set when a shard, or the coordinator, fails next, or a snapshot set is taken."""
    failures = world.failures
    if who == shards + SHARD:
        _next_failure(world, queue, who, failures.shard_life_s, at_s)
    elif who == shards + COORDINATOR:
        _next_failure(world, queue, who, failures.coordinator_life_s, at_s)
    elif failures.snapshot_every_s < np.inf:
        put(queue, at_s + failures.snapshot_every_s, who, 0)


@inlined
def _of_server(world: Any, server: int, at_s: float) -> None:
    """A shard or the coordinator fails, or a snapshot set is taken."""
    failures, totals = world.failures, world.totals
    servers = world.servers
    if server == SHARD:
        totals[SHARD_FAILURES] += 1
        servers.shard_s = max(servers.shard_s, at_s + failures.shard_failover_s)
        if failures.keeps == 0:
            totals[ROLLED_BACK] += failures.share * servers.since_set
            servers.since_set = 0.0
    elif server == COORDINATOR:
        totals[COORDINATOR_FAILURES] += 1
        servers.coordinator_s = max(servers.coordinator_s, at_s + failures.coordinator_failover_s)
    else:
        servers.shard_s = max(servers.shard_s, at_s) + failures.snapshot_s
        servers.since_set = 0.0


@inlined
def _proceed(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, who: int, at_s: float) -> None:
    """What a replica does next, when what it did before is done."""
    replica, servers = replicas[who], world.servers
    stage = replica.stage
    if stage == SEND:
        _send(world, replicas, machines, queue, who, at_s)
    elif stage == BARRIER:
        pass_barrier(world, replicas, machines, queue, who, at_s)
    elif stage == ASK:
        _ask(world, replicas, machines, queue, trace, who, at_s)
    elif stage == BEGIN:
        _begin_lease(world, replicas, machines, queue, who, at_s)
    else:
        servers.members += replica.served == FENCED  # one that is back before its fence takes its place
        replica.alive, replica.stage, replica.clock, replica.served = 1, ASK, servers.slowest, ANSWERED
        servers.alive += 1
        servers.at_slowest += 1
        servers.coordinator_s = max(servers.coordinator_s, at_s) + world.service.joined_s
        put(queue, servers.coordinator_s, who, replica.incarnation)


@inlined
def _ask(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, who: int, at_s: float) -> None:
    """Ask the coordinator for a lease. Without one the replica is idle to the job's end."""
    replica, servers, plan, totals = replicas[who], world.servers, world.plan, world.totals
    if servers.steps_left > 0:
        latency_s = replica.latency_s + world.service.coordinator_latency_s
        got_s = leased(world, machines, at_s + latency_s) + latency_s
        totals[LEASED_S] += got_s - at_s
        size = float(plan.lease)
        if servers.alive > plan.few and replica.granted > 0 and got_s > replica.granted_s:
            wanted = replica.granted / (got_s - replica.granted_s) * servers.alive / plan.paced_per_s
            most = min(4.0 * replica.granted, servers.steps_left / (2.0 * servers.alive))
            size = plan.lease * max(1.0, math.floor(min(wanted, most) / plan.lease))
        granted = int(min(size, float(servers.steps_left)))
        servers.steps_left -= granted
        replica.granted, replica.left, replica.granted_s, replica.stage = granted, granted, got_s, BEGIN
        put(queue, got_s, who, replica.incarnation)
    else:
        replica.waits = WORK
        servers.members -= 1  # no round waits for it
        if world.plan.quorum > 0 and servers.held >= max(1, servers.members):
            end_round(world, replicas, machines, queue, trace, at_s)


@inlined
def _begin_lease(world: Any, replicas: Any, machines: Any, queue: Any, who: int, at_s: float) -> None:
    replica = replicas[who]
    if world.plan.begins == 1 or replica.fresh == 1:
        replica.fresh = 0
        replica.waits, replica.since_s = FIRST_FETCH, at_s
        exchange(world, replicas, machines, queue, who, FETCH, at_s)
    else:
        compute_head(world, replicas, machines, queue, who, at_s)


@inlined
def _send(world: Any, replicas: Any, machines: Any, queue: Any, who: int, at_s: float) -> None:
    """End a segment with its exchange."""
    replica, plan = replicas[who], world.plan
    steps, place = segment(world, replicas, who), replica.place
    replica.left -= steps
    replica.pending += steps * plan.batch
    kind, last = plan.kind[place], replica.left <= 0
    replica.place = 0 if last else (place + 1) % plan.exchanges
    beside = 0 if last else beside_of(world, replicas, who)
    if last:  # the lease ends with a push; where the next one begins with a fetch, no fetch is needed here
        replica.stage, replica.waits, replica.since_s = ASK, EXCHANGE, at_s
        kind = PUSH if plan.begins == 1 else kind | PUSH
    elif beside == 0:
        replica.stage, replica.waits, replica.since_s = BARRIER, EXCHANGE, at_s
    # What an exchange beside computing costs the replica delays its computing: one thread at a time runs Python.
    sent_s = exchange(world, replicas, machines, queue, who, kind, at_s)
    _advance(world, replicas, queue, who, steps, at_s)
    if beside > 0:
        compute_head(world, replicas, machines, queue, who, sent_s)


@inlined
def _advance(world: Any, replicas: Any, queue: Any, who: int, steps: int, at_s: float) -> None:
    """Move a replica's clock; where it was the slowest, let those go on that waited for it."""
    servers, replica = world.servers, replicas[who]
    before = replica.clock
    replica.clock = before + steps
    if world.plan.bound >= 0 and before == servers.slowest:
        servers.at_slowest -= 1
        if servers.at_slowest <= 0:
            _release(world, replicas, queue, at_s)


@jit
def _release(world: Any, replicas: Any, queue: Any, at_s: float) -> None:
    """Find the slowest replica, and let those go on that are not too far ahead of it. Cost: the number of replicas."""
    least, many = np.int64(-1), 0
    for who in range(len(replicas)):
        clock = replicas[who].clock
        if replicas[who].alive == 1:
            if least < 0 or clock < least:
                least, many = clock, 1
            elif clock == least:
                many += 1
    world.servers.slowest, world.servers.at_slowest = least, many
    for who in range(len(replicas)):
        replica = replicas[who]
        if replica.waits == OTHERS and replica.clock - least <= world.plan.bound:
            replica.waits = NOTHING
            world.totals[WAITED_S] += at_s - replica.since_s
            put(queue, at_s, who, replica.incarnation)


@inlined
def _answered(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, who: int, at_s: float) -> None:
    """The answer of an exchange is there."""
    replica = replicas[who]
    acknowledge(world, replicas, who, at_s)
    waits = replica.waits
    if waits in (EXCHANGE, FIRST_FETCH):
        replica.waits = NOTHING
        if waits == FIRST_FETCH:
            compute_head(world, replicas, machines, queue, who, at_s)
        else:
            _proceed(world, replicas, machines, queue, trace, who, at_s)


@jit
def _fail(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, number: int, at_s: float) -> None:
    """A machine's replicas fail, and join again after its time; their leases are granted again."""
    totals, servers, machine = world.totals, world.servers, machines[number]
    totals[WORKER_FAILURES] += 1
    returned = 0
    for who in range(machine.first, machine.first + machine.workers):
        replica = replicas[who]
        if replica.alive == 1:
            totals[LOST_SAMPLES] += replica.pending
            if replica.served == HELD:
                totals[LOST_SAMPLES] += replica.sent
                servers.held -= 1
            returned += replica.left
            servers.alive -= 1
            replica.incarnation += 1
            idle = replica.waits == WORK
            replica.alive, replica.flying, replica.waits = 0, 0, NOTHING
            replica.pending, replica.sent, replica.left, replica.granted = 0, 0, 0, 0
            replica.place, replica.stage, replica.fresh = 0, JOIN, 1
            replica.served = FENCED if idle else FAILED
            replica.fetched, replica.older, replica.received_s = -1, -1, 0.0
            record(world, trace, LOST, who, at_s)
            put(queue, at_s + machine.returns_s, who, replica.incarnation)
            put(queue, at_s + world.failures.fence_s, who + 2 * len(replicas), replica.incarnation)
    servers.steps_left += returned
    if world.plan.bound >= 0:
        _release(world, replicas, queue, at_s)
    if returned > 0:
        _wake(world, replicas, queue, at_s)


@jit
def _wake(world: Any, replicas: Any, queue: Any, at_s: float) -> None:
    """Let those ask for a lease that have got none."""
    for who in range(len(replicas)):
        if replicas[who].waits == WORK and replicas[who].alive == 1:
            replicas[who].waits = NOTHING
            world.servers.members += 1
            put(queue, at_s, who, replicas[who].incarnation)
