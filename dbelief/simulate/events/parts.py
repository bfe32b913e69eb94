"""What the simulated events work on: replicas, machines, servers, and what is counted."""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

import numpy as np

from .draws import ENTRIES
from .event_queue import make_queue

MOST_PROCESSORS, MOST_EXCHANGES, HISTOGRAM, BINS = 64, 1024, 1 << 16, 240
"""Sizes: processors that are queued for; exchanges until a schedule repeats; versions; parts of the time."""

REPLICA = np.dtype(
    [
        # of its machine and links
        ("station", np.int32),  # the machine whose processors it queues for
        ("step_s", np.float64),  # mean seconds of a mini-batch, alone
        ("busy_s", np.float64),  # of them on a processor
        ("link_s", np.float64),  # seconds of a byte on its own link; 0: loopback
        ("latency_s", np.float64),  # of a message to a shard, one way
        ("own", np.float64),  # share of an exchange's bytes that cross its own link
        ("slower", np.float64),  # what costs of calls are multiplied by on its processors
        # what is due next
        ("stage", np.int8),
        ("kind", np.int8),  # of its exchange
        ("served", np.int8),  # what has become of it
        ("flying", np.int8),  # whether there is one
        ("waits", np.int8),
        ("alive", np.int8),
        ("fresh", np.int8),  # whether it has never fetched
        ("place", np.int16),  # of the next exchange in the schedule
        ("incarnation", np.int32),
        ("since_s", np.float64),  # when its wait began
        # its lease, in mini-batches
        ("left", np.int32),
        ("granted", np.int32),
        ("granted_s", np.float64),
        # its work
        ("base", np.int64),  # version of the parameters that it computes with
        ("pushed", np.int64),  # of those that its push was computed with
        ("fetched", np.int64),  # of those that it has fetched last, and before; -1: none
        ("older", np.int64),
        ("clock", np.int64),  # mini-batches that it has sent
        ("pending", np.int32),  # samples computed, not pushed
        ("sent", np.int32),  # samples pushed, not acknowledged
        ("samples", np.float64),
        ("received_s", np.float64),  # processor seconds for what was fetched, before the next mini-batch
    ],
    align=True,
)
"""One replica."""
MACHINE = np.dtype(
    [
        ("processors", np.int64),  # that its replicas queue for; 0: there are enough for all
        ("slower", np.float64),  # what work takes as a multiple, while another of them is in use
        ("first", np.int64),  # its replicas: the first, and how many
        ("workers", np.int64),
        ("life_s", np.float64),  # mean seconds until it fails; inf: never
        ("returns_s", np.float64),  # until its replicas may join again
        ("free_s", np.float64, (MOST_PROCESSORS,)),  # when each processor is free
    ],
    align=True,
)
"""One machine."""
SERVERS = np.dtype(
    [
        ("in_s", np.float64),  # when a shard's link is free, in both directions
        ("out_s", np.float64),
        ("shard_s", np.float64),  # when the shard is free
        ("coordinator_s", np.float64),  # when the coordinator is free
        ("since_set", np.float64),  # samples pushed since the newest snapshot set
        ("version", np.int64),
        ("steps_left", np.int64),  # mini-batches that are not leased
        ("slowest", np.int64),  # clock of the slowest replica, and how many have it
        ("at_slowest", np.int64),
        ("alive", np.int64),  # replicas that are there
        ("members", np.int64),  # that a round waits for: a failed one too, until it is fenced
        ("held", np.int64),  # pushes in the open round
        ("round_s", np.float64),  # when the open round began
    ],
    align=True,
)
"""Shards and coordinator, (1,)."""


class Schedule(NamedTuple):
    """A job's exchanges, which repeat: one entry for each.

    Attributes
    ----------
    steps, kind, beside
        (E,) int64: mini-batches before the exchange; its kind; mini-batches of the next segment that it travels beside.
    exchanges
        E.
    lease, batch
        Mini-batches of a lease of the job's size; samples of a mini-batch.
    paced_per_s, few
        Leases per second that all replicas together ask for, by larger leases, where they are more than `few`.
    ahead
        Whether the parameters that an exchange brings are for the segment after the one that it travels beside.
    begins
        Whether each lease begins with a fetch; else only the first of an incarnation does.
    bound
        Mini-batches that a replica may be ahead of the slowest; -1: any number.
    quorum
        Pushes of a round, which end it; a large number: of all members; 0: there are no rounds.
    grace, grace_s
        How long a round waits for others after its quorum: a share of the time up to it, and seconds.
    sum_s
        Seconds of a sum that members make among themselves; 0: the shards make it.
    steps_left
        Mini-batches until the job ends.
    until_s, warm_s
        When the simulation ends; from when on is counted.
    """

    steps: np.ndarray
    kind: np.ndarray
    beside: np.ndarray
    exchanges: int
    lease: int
    batch: int
    paced_per_s: float
    few: int
    ahead: bool
    begins: bool
    bound: int
    quorum: int
    grace: float
    grace_s: float
    sum_s: float
    steps_left: int
    until_s: float
    warm_s: float


class Service(NamedTuple):
    """What exchanges and calls cost. Seconds; of one shard that stands for all.

    Attributes
    ----------
    pushed, fetched, asked
        Bytes of one exchange of a replica with all shards: pushed, fetched, of a request without parameters.
    served
        Share of them that crosses the link of one shard's host.
    served_s
        Seconds of a byte on that link; 0: loopback.
    push_s, fetch_s
        Processor seconds of one shard for its part of a push, of a fetch.
    follow_s
        Seconds from a push at a shard until its followers have it, where they are on other hosts.
    client_push_s, client_ask_s, client_fetch_s
        Processor seconds of a replica for a push, for a request of parameters, for those that it has fetched.
    wake_s
        Processor seconds more of what begins on a processor that is idle.
    trips
        Times the latency in one direction of an exchange: 1, and more where windows have to grow.
    shard_on, coordinator_on
        Machine whose processors the shard, the coordinator queues for; -1: it has one.
    leaders, followers
        Shards on that machine, each of which has such a part of an exchange; followers of them, which have each push.
    lease_s, joined_s
        Seconds of the coordinator for a lease, for a replica that joins.
    coordinator_latency_s
        Of a message to it, one way, more than to the shards.
    """

    pushed: float
    fetched: float
    asked: float
    served: float
    served_s: float
    push_s: float
    fetch_s: float
    follow_s: float
    client_push_s: float
    client_ask_s: float
    client_fetch_s: float
    wake_s: float
    trips: float
    shard_on: int
    coordinator_on: int
    leaders: int
    followers: int
    lease_s: float
    joined_s: float
    coordinator_latency_s: float


class Failures(NamedTuple):
    """Failures of servers, and snapshot sets.

    Attributes
    ----------
    shard_life_s, shard_failover_s, keeps
        Mean seconds until a shard fails, of all of them; seconds until it serves again; whether a follower has all
        pushes, else those since the newest set are lost.
    coordinator_life_s, coordinator_failover_s
        The same of the coordinator.
    snapshot_every_s, snapshot_s
        Seconds from one set to the next, inf: none; seconds that a shard serves nothing meanwhile.
    share
        Of a shard's pushes among those of the job: what a lost shard's pushes count.
    fence_s
        Seconds from a replica's failure until no round waits for it.
    worker_kill_s, shard_kill_s, coordinator_kill_s
        A failure of machine 0, of a shard, of the coordinator at this time; inf: none.
    """

    shard_life_s: float
    shard_failover_s: float
    keeps: bool
    coordinator_life_s: float
    coordinator_failover_s: float
    snapshot_every_s: float
    snapshot_s: float
    share: float
    fence_s: float
    worker_kill_s: float
    shard_kill_s: float
    coordinator_kill_s: float


(
    SAMPLES,
    LOST_SAMPLES,
    ROLLED_BACK,
    PUSHES,
    STALENESS,
    SENT,
    RECEIVED,
    COMPUTED_S,
    WAITED_S,
    LEASED_S,
    SHARD_S,
    SHARDS_S,
    LINK_IN_S,
    LINK_OUT_S,
    COORDINATOR_S,
    PROCESSORS_S,
    LEASES,
    WORKER_FAILURES,
    SHARD_FAILURES,
    COORDINATOR_FAILURES,
    OWN_LINK_S,
    ROUNDS,
    EVENTS,
    ENDED_S,
    LAST_S,
    TOTALS,
) = range(26)
"""Places in `totals`; ROLLED_BACK: samples that were acknowledged, and lost with a shard."""


def _record_of(kind: type[Any]) -> np.dtype[Any]:
    """The record of a class of plain values, in which arrays have room for a schedule."""
    kinds: dict[Any, Any] = {float: (np.float64,), int: (np.int64,), bool: (np.int64,)}
    hints = get_type_hints(kind)
    rows = [(name, *kinds.get(hints[name], (np.int64, (MOST_EXCHANGES,)))) for name in kind._fields]
    return np.dtype(rows, align=True)


WORLD = np.dtype(
    [
        ("plan", _record_of(Schedule)),
        ("service", _record_of(Service)),
        ("failures", _record_of(Failures)),
        ("servers", SERVERS),
        ("random", np.uint64, (1,)),
        ("step_table", np.float64, (ENTRIES,)),  # quantiles of a mini-batch's time, of mean 1
        ("life_table", np.float64, (ENTRIES,)),  # of a life
        ("totals", np.float64, (TOTALS,)),
        ("staleness", np.int64, (HISTOGRAM,)),  # pushes by staleness in versions, the last entry for all above
        ("by_time", np.float64, (BINS,)),  # samples acknowledged in each part of the time
        ("traced", np.int64),  # events that are recorded
    ],
    align=True,
)
"""All that is not of one replica or one machine. Records, as references to arrays would be counted at every use."""
EVENT = np.dtype([("kind", np.uint8), ("replica", np.int32), ("at_s", np.float64)], align=True)
"""A recorded event: see `delays`."""


class World(NamedTuple):
    """What is simulated: records (1,), (N,), (M,), the queue of events, and the recorded ones."""

    world: np.ndarray
    replicas: np.ndarray
    machines: np.ndarray
    queue: np.ndarray
    trace: np.ndarray


def make_world(
    replicas: np.ndarray,
    machines: np.ndarray,
    plan: Schedule,
    service: Service,
    failures: Failures,
    tables: tuple[np.ndarray, np.ndarray],
    seed: int,
    traced: int = 0,
) -> World:
    """The world before its first event.

    Parameters
    ----------
    tables
        Quantiles of a mini-batch's time, and of a life.
    traced
        Events that are recorded.
    """
    world = np.zeros(1, WORLD)
    for section, values in (("plan", plan), ("service", service), ("failures", failures)):
        for name, value in values._asdict().items():
            if isinstance(value, np.ndarray):
                world[section][name][0, : len(value)] = value
            else:
                world[section][name] = value
    world["step_table"], world["life_table"] = tables
    world["random"] = seed
    queue = make_queue(4 * len(replicas) + len(machines) + 16)
    return World(world, replicas, machines, queue, np.zeros(traced, EVENT))
