"""Exchanges of replicas with the shards: links, service, rounds. Imports numba."""

from __future__ import annotations

from typing import Any

from dbelief.arrays.jit import inlined, jit

from .computing import BARRIER, EXCHANGE, FIRST_FETCH, on_processor, pass_barrier
from .event_queue import put
from .parts import (
    BINS,
    HISTOGRAM,
    LAST_S,
    LINK_IN_S,
    LINK_OUT_S,
    OWN_LINK_S,
    PROCESSORS_S,
    PUSHES,
    RECEIVED,
    ROUNDS,
    SAMPLES,
    SENT,
    SHARD_S,
    SHARDS_S,
    STALENESS,
    WAITED_S,
)

PUSH, FETCH = 1, 2
"""Kinds of exchange, as bits."""
ON_WAY, ANSWERED, HELD, FAILED, FENCED = range(5)
"""What has become of an exchange: it travels to the shard, or back; its round is open; its replica has failed, and no
round waits for it.
"""
NONE = -1
"""Version of a replica that has never fetched."""
GRACE = 4
"""The event that ends a round after its quorum."""
FETCHED, PUSHED, LOST, ROUND = range(4)
"""Kinds of recorded events: see `delays`."""


@inlined
def exchange(world: Any, replicas: Any, machines: Any, queue: Any, who: int, kind: int, at_s: float) -> Any:
    """Begin an exchange: its bytes on the links to the shards. When the replica can compute again."""
    replica, service, servers, totals = replicas[who], world.service, world.servers, world.totals
    replica.flying, replica.kind, replica.served, replica.pushed = 1, kind, ON_WAY, replica.base
    pushed = service.pushed if kind & PUSH else 0.0
    busy_s = service.client_push_s if kind & PUSH else 0.0
    busy_s = replica.slower * (busy_s + (service.client_ask_s if kind & FETCH else 0.0))
    at_s = on_processor(world, machines, replica.station, at_s, busy_s, PROCESSORS_S)
    size = service.asked + pushed
    own_s, link_s = size * replica.own * replica.link_s, size * service.served * service.served_s
    servers.in_s = max(servers.in_s, at_s) + link_s
    arrives_s = max(at_s + own_s, servers.in_s) + service.trips * replica.latency_s
    totals[SENT] += pushed
    totals[LINK_IN_S] += link_s
    totals[OWN_LINK_S] += own_s
    put(queue, arrives_s, who + len(replicas), replica.incarnation)
    return at_s


@inlined
def serve(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, who: int, at_s: float) -> None:
    """A shard applies a push, and answers; a push of an open round is answered when that ends."""
    replica, servers, totals = replicas[who], world.servers, world.totals
    kind = replica.kind
    done_s = served(world, machines, at_s, kind)
    holds = False
    if kind & PUSH:
        if world.service.follow_s > 0:  # a follower has a push before it is answered
            done_s += world.service.follow_s
        stale = servers.version - replica.pushed
        totals[STALENESS] += stale
        totals[PUSHES] += 1
        world.staleness[min(stale, HISTOGRAM - 1)] += 1
        servers.since_set += replica.pending
        replica.sent, replica.pending = replica.pending, 0
        record(world, trace, PUSHED, who, done_s)
        holds = world.plan.quorum > 0 and stale == 0
        if world.plan.quorum == 0:
            servers.version += 1
    if holds:
        replica.served = HELD
        servers.held += 1
        if not _ends(world, replicas, machines, queue, trace, done_s) and servers.held == world.plan.quorum:
            grace_s = max(world.plan.grace_s, world.plan.grace * (done_s - servers.round_s))
            put(queue, done_s + grace_s, server_event(replicas, machines, GRACE), servers.version)
    else:
        answer(world, replicas, machines, queue, trace, who, done_s)


@inlined
def server_event(replicas: Any, machines: Any, event: int) -> int:
    """The number of an event of the servers."""
    return 3 * len(replicas) + len(machines) + event


@inlined
def served(world: Any, machines: Any, at_s: float, kind: int) -> Any:
    """When the shards have done their part, after what came before; a follower has a push before it is answered."""
    service, servers = world.service, world.servers
    push_s = service.push_s if kind & PUSH else 0.0
    busy_s = push_s + (service.fetch_s if kind & FETCH else 0.0)
    begun_s = max(at_s, servers.shard_s)
    done_s = begun_s + busy_s
    if service.shard_on >= 0:
        for _ in range(service.leaders):
            done_s = max(done_s, on_processor(world, machines, service.shard_on, begun_s, busy_s, SHARDS_S))
        for _ in range(service.followers):
            done_s = max(done_s, on_processor(world, machines, service.shard_on, begun_s, push_s, SHARDS_S))
    servers.shard_s = done_s
    world.totals[SHARD_S] += busy_s
    return done_s


@inlined
def _ends(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, at_s: float) -> bool:
    """End the round where all members have pushed."""
    if world.servers.held >= world.servers.members:
        end_round(world, replicas, machines, queue, trace, at_s)
        return True
    return False


@jit
def end_round(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, at_s: float) -> None:
    """Answer all pushes of the open round. Cost: the number of replicas."""
    servers = world.servers
    at_s += world.plan.sum_s
    servers.version += 1
    servers.held = 0
    servers.round_s = at_s
    world.totals[ROUNDS] += 1
    record(world, trace, ROUND, -1, at_s)
    for who in range(len(replicas)):
        if replicas[who].served == HELD:
            answer(world, replicas, machines, queue, trace, who, at_s)


@inlined
def answer(world: Any, replicas: Any, machines: Any, queue: Any, trace: Any, who: int, at_s: float) -> None:
    """Send a shard's answer."""
    replica, service, servers, totals = replicas[who], world.service, world.servers, world.totals
    # A buffer that holds this version already gets nothing; with `ahead` there are two, in turn.
    held = replica.older if world.plan.ahead == 1 else replica.fetched
    if world.plan.ahead == 1 and replica.fetched == NONE:  # what the first two segments are computed with
        record(world, trace, FETCHED, who, at_s)
    brought = service.fetched if replica.kind & FETCH and servers.version != held else 0.0
    if replica.kind & FETCH or world.plan.sum_s > 0:
        replica.older = replica.fetched
        replica.fetched = servers.version
    if replica.kind & FETCH:
        record(world, trace, FETCHED, who, at_s)
    size = service.asked + brought
    followed = service.pushed if replica.kind & PUSH and service.follow_s > 0 else 0.0
    own_s, link_s = size * replica.own * replica.link_s, (size + followed) * service.served * service.served_s
    servers.out_s = max(servers.out_s, at_s) + link_s
    totals[RECEIVED] += brought
    totals[LINK_OUT_S] += link_s
    totals[OWN_LINK_S] += own_s
    replica.served = ANSWERED
    answered_s = max(at_s + own_s, servers.out_s) + service.trips * replica.latency_s
    replica.received_s += replica.slower * service.client_fetch_s if brought > 0 else 0.0
    alone = machines[replica.station].processors == 0 and world.plan.bound < 0
    if alone and replica.waits == EXCHANGE and replica.stage == BARRIER:
        # Nothing that another replica uses comes next, so that no event is needed for the answer.
        acknowledge(world, replicas, who, answered_s)
        pass_barrier(world, replicas, machines, queue, who, answered_s)
    else:
        put(queue, answered_s, who + len(replicas), replica.incarnation)


@inlined
def acknowledge(world: Any, replicas: Any, who: int, at_s: float) -> None:
    """Count what a push has brought, and the wait for it."""
    replica, totals = replicas[who], world.totals
    replica.flying = 0
    if at_s <= world.plan.until_s:
        totals[SAMPLES] += replica.sent
        totals[LAST_S] = max(totals[LAST_S], at_s)
        replica.samples += replica.sent
        world.by_time[min(int(at_s / world.plan.until_s * BINS), BINS - 1)] += replica.sent
    replica.sent = 0
    if replica.waits == EXCHANGE or replica.waits == FIRST_FETCH:
        totals[WAITED_S] += at_s - replica.since_s


@inlined
def record(world: Any, trace: Any, kind: int, who: int, at_s: float) -> None:
    """Record an event, where there is room."""
    place = world.traced
    if place < len(trace):
        trace[place].kind, trace[place].replica, trace[place].at_s = kind, who, at_s
        world.traced = place + 1
