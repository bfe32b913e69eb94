"""Passes of a batch method: portions, bundles and backup tasks; importing this module imports numba.

In a pass an idle worker gets the next bundle: so many portions as the job allows, fewer near the end. It computes them
at the pass's parameters, which it fetches once, and their sum travels to the shards while it asks for the next bundle.
When none is left, idle workers get copies of outstanding ones, and the first that arrives counts. Then the shards make
the step, and the next pass begins (DistBelief, section 4.2; `coordinator/sandblaster/pass_scheduler.py`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dbelief.arrays.jit import inlined, jit

from .computing import NOTHING, WORK, compute, leased, on_processor
from .draws import drawn
from .event_queue import put, take
from .exchanges import FETCH, PUSH, served
from .parts import (
    BINS,
    ENDED_S,
    EVENTS,
    LAST_S,
    LINK_IN_S,
    LINK_OUT_S,
    LOST_SAMPLES,
    OWN_LINK_S,
    PROCESSORS_S,
    PUSHES,
    RECEIVED,
    ROUNDS,
    SAMPLES,
    SENT,
    TOTALS,
    WORKER_FAILURES,
    World,
)

IDLE = -1
FREE, COMPUTED, ARRIVED, BACK, KINDS = range(5)
"""Events of a worker: it asks for a bundle; has computed it; the sum is at the shards; it is back after a failure."""


class Pass(NamedTuple):
    """A pass, as all are.

    Attributes
    ----------
    portions, bundle, samples
        Portions of a pass; of a bundle at most; samples of a portion.
    backups
        Whether idle workers get copies.
    program_s
        Seconds between two passes, in which the shards make a step.
    """

    portions: int
    bundle: int
    samples: int
    backups: bool
    program_s: float


def simulate_passes(world: World, one: Pass) -> None:
    """Simulate passes until the time of the plan. Cost: three events for a bundle."""
    workers = len(world.replicas)
    bundles = np.full((workers, 3), IDLE, np.int64)  # first portion, portions, whether it is a copy; by worker
    done = np.zeros(one.portions, np.int64)
    _run(*world[:4], one, bundles, done)


@jit
def _run(worlds: Any, replicas: Any, machines: Any, queue: Any, one: Any, bundles: Any, done: Any) -> None:
    world = worlds[0]
    many, totals = len(replicas), world.totals
    for machine in range(len(machines)):
        if machines[machine].life_s < np.inf:
            _fails_next(world, machines, queue, KINDS * many + machine, machine, 0.0)
    _begin_pass(world, replicas, queue, bundles, done, 0.0)
    events, now_s, warm = 0, 0.0, world.plan.warm_s > 0
    while queue[0].what > 0:
        at_s, who, incarnation = take(queue)
        if at_s > world.plan.until_s:
            break
        now_s, events = at_s, events + 1
        if warm and at_s >= world.plan.warm_s:
            warm = False
            for place in range(TOTALS):
                totals[place] = 0.0
        if who >= KINDS * many:
            _fail(world, replicas, machines, queue, one, bundles, who - KINDS * many, at_s)
            _fails_next(world, machines, queue, who, who - KINDS * many, at_s + machines[who - KINDS * many].returns_s)
        elif incarnation == replicas[who % many].incarnation:
            if who // many == BACK:
                replicas[who % many].alive, replicas[who % many].fetched = 1, IDLE
                replicas[who % many].waits = NOTHING
                put(queue, at_s, who % many, incarnation)
            elif who // many == FREE:
                _ask(world, replicas, machines, queue, one, bundles, done, who, at_s)
            elif who // many == COMPUTED:
                replica = replicas[who % many]
                busy_s = replica.slower * world.service.client_push_s
                sent_s = on_processor(world, machines, replica.station, at_s, busy_s, PROCESSORS_S)
                arrives_s = _pushed(world, machines, replica, sent_s)
                put(queue, arrives_s, who % many + ARRIVED * many, incarnation)
            elif _arrived(world, replicas, queue, one, bundles, done, who % many, at_s):
                _begin_pass(world, replicas, queue, bundles, done, at_s + one.program_s)
    totals[EVENTS] = events
    totals[ENDED_S] = world.plan.until_s if queue[0].what > 0 else now_s


@inlined
def _fails_next(world: Any, machines: Any, queue: Any, who: int, machine: int, from_s: float) -> None:
    put(queue, from_s + machines[machine].life_s * drawn(world.random, world.life_table), who, 0)


@inlined
def _begin_pass(world: Any, replicas: Any, queue: Any, bundles: Any, done: Any, at_s: float) -> None:
    """All portions are to be computed at new parameters; idle workers ask for them."""
    world.servers.version += 1
    world.servers.held = 0  # portions that have arrived
    world.servers.since_set = 0.0  # portions that are given
    for portion in range(len(done)):
        done[portion] = 0
    for who in range(len(replicas)):
        replica = replicas[who]
        if world.servers.version == 1:
            replica.alive, replica.fetched, replica.waits = 1, IDLE, WORK
        if replica.alive == 1 and replica.waits == WORK:
            replica.waits = NOTHING
            put(queue, at_s, who, replica.incarnation)


@inlined
def _ask(
    world: Any, replicas: Any, machines: Any, queue: Any, one: Any, bundles: Any, done: Any, who: int, at_s: float
) -> None:
    """Give a worker its next bundle, or a copy of the first outstanding one; without either it is idle."""
    replica, servers = replicas[who], world.servers
    got_s = leased(world, machines, at_s + replica.latency_s) + replica.latency_s
    first, portions, copy = int(servers.since_set), 0, 0
    left = one.portions - first
    if bundles[who, 0] >= 0 and replica.base == servers.version and bundles[who, 2] == 0:  # it had failed with it
        first, portions = bundles[who, 0], bundles[who, 1]
    elif left > 0:
        share = max(1, math.ceil(left / (2 * len(replicas))))
        portions = min(one.bundle, share, left)
        servers.since_set += portions
    else:
        first, portions = _outstanding(replicas, one, bundles, done)
        copy = 1
    bundles[who, 0] = IDLE
    if portions > 0:
        bundles[who, 0], bundles[who, 1], bundles[who, 2] = first, portions, copy
        replica.since_s, replica.base = at_s, servers.version
        if replica.fetched != servers.version:
            replica.fetched = servers.version
            replica.received_s += replica.slower * (world.service.client_ask_s + world.service.client_fetch_s)
            got_s = _fetched(world, machines, replica, got_s)
        done_s = compute(world, replicas, machines, who, got_s, portions)
        put(queue, done_s, who + COMPUTED * len(replicas), replica.incarnation)
    else:
        replica.waits = WORK


@inlined
def _outstanding(replicas: Any, one: Any, bundles: Any, done: Any) -> Any:
    """The bundle that has been computed for longest, and of which there is no copy. Cost: the number of workers.

    Without backup tasks it is one of a worker that has failed.
    """
    best, first, portions, copied = np.inf, 0, 0, 0
    for other in range(len(replicas)):
        begun = bundles[other, 0]
        wanted = one.backups or replicas[other].alive == 0
        if begun >= 0 and done[begun] == 0 and bundles[other, 2] == 0 and wanted and replicas[other].since_s < best:
            best, first, portions = replicas[other].since_s, begun, bundles[other, 1]
            copied = other
    if portions > 0:
        bundles[copied, 2] = 1
    return first, portions


@inlined
def _pushed(world: Any, machines: Any, replica: Any, at_s: float) -> Any:
    """When a sum has passed the links to the shards, and they and their followers have it."""
    service, servers, totals = world.service, world.servers, world.totals
    own_s, link_s = _on_links(service, replica, service.pushed)
    servers.in_s = max(servers.in_s, at_s) + link_s
    totals[LINK_IN_S] += link_s
    totals[OWN_LINK_S] += own_s
    totals[SENT] += service.pushed
    there_s = max(at_s + own_s, servers.in_s) + service.trips * replica.latency_s
    return served(world, machines, there_s, PUSH) + service.follow_s


@inlined
def _fetched(world: Any, machines: Any, replica: Any, at_s: float) -> Any:
    """When the parameters that are asked for now have passed the links from the shards."""
    service, servers, totals = world.service, world.servers, world.totals
    own_s, link_s = _on_links(service, replica, service.fetched)
    there_s = served(world, machines, at_s + service.trips * replica.latency_s, FETCH)
    servers.out_s = max(servers.out_s, there_s) + link_s
    totals[LINK_OUT_S] += link_s
    totals[OWN_LINK_S] += own_s
    totals[RECEIVED] += service.fetched
    return max(there_s + own_s, servers.out_s) + service.trips * replica.latency_s


@inlined
def _on_links(service: Any, replica: Any, size: float) -> Any:
    """Seconds of so many bytes on a worker's link, and on that of a shard's host."""
    return size * replica.own * replica.link_s, size * service.served * service.served_s


@inlined
def _arrived(world: Any, replicas: Any, queue: Any, one: Any, bundles: Any, done: Any, who: int, at_s: float) -> Any:
    """A bundle is at the shards; whether the pass is over with it."""
    servers, totals = world.servers, world.totals
    first, portions = bundles[who, 0], bundles[who, 1]
    bundles[who, 0] = IDLE
    over = False
    totals[PUSHES] += 1
    if replicas[who].base == servers.version and done[first] == 0:
        for portion in range(first, first + portions):
            done[portion] = 1
        servers.held += portions
        totals[SAMPLES] += portions * one.samples
        totals[LAST_S] = at_s
        world.by_time[min(int(at_s / world.plan.until_s * BINS), BINS - 1)] += portions * one.samples
        over = servers.held == one.portions
        totals[ROUNDS] += over
    if over:
        replicas[who].waits = WORK
    else:
        put(queue, at_s, who, replicas[who].incarnation)
    return over


@inlined
def _fail(
    world: Any, replicas: Any, machines: Any, queue: Any, one: Any, bundles: Any, number: int, at_s: float
) -> None:
    """A machine's workers fail; their bundles are left for copies, and they are back after the machine's time."""
    machine = machines[number]
    world.totals[WORKER_FAILURES] += 1
    for who in range(machine.first, machine.first + machine.workers):
        replica = replicas[who]
        if replica.alive == 1:
            replica.alive = 0
            replica.incarnation += 1
            if bundles[who, 0] >= 0:
                world.totals[LOST_SAMPLES] += bundles[who, 1] * one.samples
                bundles[who, 2] = 0  # a copy of it may be made
            put(queue, at_s + machine.returns_s, who + BACK * len(replicas), replica.incarnation)
