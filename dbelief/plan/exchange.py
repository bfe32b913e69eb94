"""Time of the exchanges of a job through its shards, and the share of a replica's time that they leave for computing.

Each replica is on a host of its own, with a link whose directions are independent, and the shards are on these hosts in
turn. What a host exchanges with its own shards uses no link; its link also carries what the other hosts exchange with
them. A push that is answered with the parameters takes

    ROUND_TRIPS 2 latency + SLOWDOWN (pushed + fetched) / bandwidth        bytes of the busiest link

seconds, and a pull of rows of a table the like, of their keys and rows, in every mini-batch. Applying, encoding and the
ends of leases are not counted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from dbelief.job import Asynchronous, Diloco, Downpour, Elastic, Job, Sandblaster, ScriptModel, SyncSgd

from .shard_traffic import NO_ROWS, RowTraffic, fetched_bytes, pushed_bytes
from .speeds import Speeds

ROUND_TRIPS, SLOWDOWN = 3.0, 1.4
"""What TCP adds, fitted to exchanges that `benchmarks/workers/planned_links.py` measures.

Round trips of an exchange, as windows grow after a pause; and the time of its bytes as a multiple of that at the link's
rate, as packets are lost where a queue is short, and all replicas wait for the slowest exchange.
"""
ENOUGH = 0.95
"""Share of computing that a number of steps is recommended for."""

Through = Downpour | Asynchronous | Elastic | SyncSgd | Diloco
"""Strategies that exchange mini-batches' results through the shards, unless they are `grouped`."""


@dataclass(frozen=True)
class Hosts:
    """Which part of the parameters the links of the hosts carry: fractions, of a push or of a fetch of all hosts.

    Attributes
    ----------
    own
        That a replica exchanges with other hosts: the largest of all hosts.
    served
        That other replicas exchange with the shards of one host: the largest of all hosts.
    beside
        That the replica of the same host exchanges with other hosts.
    """

    own: float
    served: float
    beside: float

    @classmethod
    def of(cls, replicas: int, shards: int) -> Hosts:
        """`shards` shards of equal size on the hosts of `replicas` replicas, in turn."""
        least, most = (shards // replicas) / shards, math.ceil(shards / replicas) / shards
        return cls(1 - least, (replicas - 1) * most, 1 - most)

    @property
    def busiest(self) -> float:
        """The largest fraction in one direction of a link, where all hosts push, and then all fetch."""
        return max(self.own, self.served)


@dataclass(frozen=True)
class Exchange:
    """Exchanges of one replica with the shards, in `steps` mini-batches.

    Attributes
    ----------
    replicas, steps
        Number of replicas; mini-batches after which the exchanges repeat.
    pushed_per_sample, fetched_per_sample
        Bytes, as encoded by the job's codecs, with rows of tables; with a threshold, the upper bound.
    travel_s
        Seconds of one push, with DiLoCo of a fragment, that is answered with the parameters, where all replicas
        exchange at the same time.
    link_s
        Seconds that the busiest direction of a link is in use.
    computed_s, waited_s
        Seconds that the replica computes, and waits for exchanges; None where the time of a mini-batch is not known.
    steps_enough, steps_hidden
        Smallest `steps` of DiLoCo with this wire that leave `ENOUGH` of the time for computing without a delay, and
        that hide the travel behind a delay of as many mini-batches; None where the time of one is not known, or the
        job has tables, which DiLoCo cannot have.
    """

    replicas: int
    steps: int
    pushed_per_sample: float
    fetched_per_sample: float
    travel_s: float
    link_s: float
    computed_s: float | None = None
    waited_s: float | None = None
    steps_enough: int | None = None
    steps_hidden: int | None = None

    @property
    def share(self) -> float | None:
        """Share of a replica's time that is left for computing, 0 to 1."""
        if self.computed_s is None or self.waited_s is None:
            return None
        return self.computed_s / (self.computed_s + self.waited_s)

    @property
    def link_share(self) -> float | None:
        """Share of the time in which the busiest direction of a link is in use."""
        if self.computed_s is None or self.waited_s is None:
            return None
        return self.link_s / (self.computed_s + self.waited_s)

    @property
    def gain(self) -> float | None:
        """Samples a second of all replicas, as a multiple of those of one without a link."""
        return None if self.share is None else self.replicas * self.share

    def described(self) -> dict[str, Any]:
        """The same as plain values."""
        return {**asdict(self), "share": self.share, "gain": self.gain, "link_share": self.link_share}


@dataclass(frozen=True)
class _Cycle:
    """What a replica exchanges until it repeats: pushes, fetches, and seconds on a link of all bytes of one of them.

    `pulls`, `asked_s`, `rows_s`: pulls of rows, and seconds on a link of all their keys, and of all these rows.
    """

    pushes: int
    fetches: int
    latency_s: float
    push_s: float
    fetch_s: float
    pulls: int
    asked_s: float
    rows_s: float

    def travel_s(self, fraction: float) -> float:
        """Seconds of a push that is answered with the parameters, where a link carries this fraction of both."""
        return self.latency_s + fraction * (self.push_s + self.fetch_s)

    def own_s(self, hosts: Hosts) -> float:
        """Seconds that a replica alone would wait: a push that no fetch follows travels beside computing."""
        return self.fetches * self.latency_s + hosts.own * (self.push_s + self.fetches * self.fetch_s)

    def pulls_s(self, fraction: float) -> float:
        """Seconds of all pulls of rows, where a link carries this fraction of them."""
        return self.pulls * self.latency_s + fraction * (self.asked_s + self.rows_s)

    def link_s(self, hosts: Hosts) -> float:
        """Seconds that the busiest direction of a link is in use."""
        pushed_s, fetched_s = self.pushes * self.push_s + self.asked_s, self.fetches * self.fetch_s + self.rows_s
        served_s = max(
            hosts.served * fetched_s + hosts.beside * pushed_s, hosts.served * pushed_s + hosts.beside * fetched_s
        )
        return max(served_s, hosts.own * max(pushed_s, fetched_s))


def exchange_of(
    job: Job, parameters: int, speeds: Speeds, step_s: float | None, rows: RowTraffic = NO_ROWS
) -> Exchange | None:
    """The exchanges of a job through its shards; None where there are none at mini-batches, or no replicas.

    Parameters
    ----------
    parameters
        Number of trained parameters.
    step_s
        Seconds that a replica computes a mini-batch; None: not known.
    rows
        Rows of tables in a mini-batch.
    """
    strategy = job.strategy
    if isinstance(strategy, Sandblaster) or strategy.grouped or not job.replicas:
        return None
    steps = math.lcm(strategy.n_push, strategy.n_fetch)
    parts = strategy.fragments if isinstance(strategy, Diloco) else 1
    pushed, fetched = pushed_bytes(job.wire, parameters) / parts, fetched_bytes(job.wire, parameters) / parts
    pushed += strategy.n_push * rows.pushed
    cycle = _Cycle(
        parts * steps // strategy.n_push,
        parts * steps // strategy.n_fetch,
        ROUND_TRIPS * 2 * speeds.latency_s if job.replicas > 1 else 0.0,
        SLOWDOWN * pushed / speeds.bandwidth,
        SLOWDOWN * fetched / speeds.bandwidth,
        steps * rows.pulls,
        SLOWDOWN * steps * rows.asked / speeds.bandwidth,
        SLOWDOWN * steps * rows.fetched / speeds.bandwidth,
    )
    hosts = Hosts.of(job.replicas, job.shards)
    samples, travel_s = steps * strategy.batch, cycle.travel_s(hosts.busiest)
    sent, received = cycle.pushes * pushed + steps * rows.asked, cycle.fetches * fetched + steps * rows.fetched
    known = Exchange(job.replicas, steps, sent / samples, received / samples, travel_s, cycle.link_s(hosts))
    if step_s is None:
        return known
    known = replace(known, computed_s=steps * step_s, waited_s=_waited_s(job, strategy, cycle, hosts, step_s))
    if rows.pulls:
        return known
    return replace(
        known,
        steps_enough=max(1, math.ceil(ENOUGH / (1 - ENOUGH) * parts * travel_s / step_s)),
        steps_hidden=max(1, math.ceil(parts * travel_s / step_s)),
    )


def _waited_s(job: Job, strategy: Through, cycle: _Cycle, hosts: Hosts, step_s: float) -> float:
    """Seconds of a cycle in which a replica does not compute."""
    computed_s = math.lcm(strategy.n_push, strategy.n_fetch) * step_s
    if isinstance(strategy, Elastic) and strategy.turns:
        own_s = cycle.travel_s(hosts.own)
        return own_s + (job.replicas - 1) * (computed_s + own_s)
    beside_s = 0.0
    if isinstance(strategy, Diloco):
        beside_s = strategy.delay * step_s
    elif isinstance(strategy, Elastic) and not isinstance(job.model, ScriptModel):
        beside_s = step_s
    elif strategy.overlap:
        beside_s = computed_s
    if strategy.staleness == 0:
        return cycle.pushes * max(0.0, cycle.travel_s(hosts.busiest) - beside_s) + cycle.pulls_s(hosts.busiest)
    own_s = max(0.0, cycle.own_s(hosts) - beside_s) + cycle.pulls_s(hosts.own)
    return max(own_s, cycle.link_s(hosts) - computed_s)
