"""Predicted communication time of a step on links of a given speed, for each method, and the recommended method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dbelief.core.reduction_tree import named
from dbelief.job import Elastic, Job, Sandblaster, SyncSgd
from dbelief.monitor.format import short_time
from dbelief.plan.allreduce_cost import Link, ring_seconds, tree_seconds

from .exchange import Exchange, exchange_of
from .memory import FLOAT32
from .shard_traffic import NO_ROWS, RowTraffic
from .speeds import Speeds
from .volumes import Volumes

CHUNK = 65_536
"""Numbers in a chunk where a sum is pipelined: a quarter of a MB, for which a typical latency is negligible."""

WAYS = ("server", "tree", "ring")
"""Names in a job file (`strategy.reduction.way`)."""


@dataclass(frozen=True)
class Sum:
    """One method to sum a gradient over all replicas: number of chunks of its messages, and seconds."""

    way: str
    chunks: int
    seconds: float

    def __str__(self) -> str:
        return f"the {self.way}" + (f" in {self.chunks:,} chunks" if self.chunks > 1 else ", unpipelined")


def predict(
    way: str, replicas: int, size: float, numbers: int, link: Link, chunk: int | None = None, arity: int | None = None
) -> Sum:
    """One method, for a vector of `numbers` numbers that has `size` bytes on the wire; `chunk` None: not chunked."""
    ranks = max(1, replicas)
    sent = math.ceil(numbers / ranks) if way == "ring" else numbers
    chunks = 1 if chunk is None else max(1, math.ceil(sent / chunk))
    if way == "ring":
        return Sum(way, chunks, ring_seconds(ranks, size, link, chunks))
    return Sum(way, chunks, tree_seconds(named(way, ranks, arity), size, link, chunks))


def sums(replicas: int, numbers: int, link: Link, chunk: int = CHUNK) -> list[Sum]:
    """All methods for a float32 vector, unpipelined, and in chunks of `chunk` numbers if that gives more than one."""
    size = FLOAT32 * numbers
    unpipelined = [predict(way, replicas, size, numbers, link) for way in WAYS]
    pipelined = [predict(way, replicas, size, numbers, link, chunk) for way in WAYS]
    return [*unpipelined, *(one for one in pipelined if one.chunks > 1)]


@dataclass(frozen=True)
class Communication:
    """Predicted communication of a step.

    Attributes
    ----------
    compute_s
        Seconds of one replica's mini-batch; None where its speed was not given.
    sums
        Methods to sum a gradient over the replicas.
    advice
        Recommendations with reasons, a sentence each.
    exchange
        Exchanges of the job through its shards; None of a network, and where the job makes none.
    """

    volumes: Volumes
    speeds: Speeds
    compute_s: float | None
    sums: Sequence[Sum]
    advice: Sequence[str]
    exchange: Exchange | None = None

    def described(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            **self.volumes.described(),
            **asdict(self.speeds),
            "compute_s": self.compute_s,
            "sums": [asdict(one) for one in self.sums],
            "advice": list(self.advice),
            "exchange": None if self.exchange is None else self.exchange.described(),
        }


def communication(
    volumes: Volumes,
    speeds: Speeds,
    job: Job | None = None,
    touched: int | None = None,
    rows: RowTraffic = NO_ROWS,
) -> Communication:
    """Predict the communication of a step.

    `job` None: of a network without a job; `touched`: see `rank_memory`; `rows`: see `exchange_of`.
    """
    compute_s = speeds.compute_s(volumes.samples * volumes.flop)
    found = sums(volumes.replicas, volumes.parameters, speeds.link)
    advice = [_parallel(volumes), _fastest(volumes, found)]
    if compute_s is not None and volumes.replicas > 1:
        advice.append(_bound(compute_s, found))
    if job is None:
        return Communication(volumes, speeds, compute_s, found, advice)
    advice += _moved(job, volumes, speeds.link, touched)
    exchange = exchange_of(job, volumes.parameters, speeds, compute_s, rows)
    return Communication(volumes, speeds, compute_s, found, advice, exchange)


def megabytes(count: float) -> str:
    """Bytes for display, in the papers' units, powers of 1000."""
    power = 1 if count < 1e5 else 2 if count < 1e10 else 3
    return f"{count / 1000**power:,.4g} {' kMG'[power]}B"


def _parallel(volumes: Volumes) -> str:
    weights, data = megabytes(volumes.weight_bytes), megabytes(volumes.data_bytes)
    if volumes.data_parallel:
        return f"Data parallelism: gradients, {weights}, are less to exchange than activations, {data}."
    return (
        "Model parallelism, a grid of ranks for each replica (docs/explanation/model_parallelism.md): activations, "
        f"{data}, are less to exchange than gradients, {weights}; or larger mini-batches."
    )


def _fastest(volumes: Volumes, found: Sequence[Sum]) -> str:
    if volumes.replicas < 2:
        return "One replica has nothing to sum."
    best, other = min(found, key=lambda one: one.seconds), found[0]
    times = other.seconds / best.seconds
    strategy = f"sync-sgd, reduction.way {best.way}"
    return f"Sum by {best} ({strategy}): it takes {short_time(best.seconds)}; {other}, {times:.3g} times as long."


def _bound(compute_s: float, found: Sequence[Sum]) -> str:
    best, worst = (pick(one.seconds for one in found) for pick in (min, max))
    if compute_s >= worst:
        return f"Computing takes {short_time(compute_s)}, longer than any of these sums: any of them will do."
    if compute_s >= best:
        return f"Computing takes {short_time(compute_s)}, longer than the fastest sum and shorter than the slowest."
    return (
        f"Computing takes {short_time(compute_s)}, {100 * compute_s / (compute_s + best):.2g} % of a step: the network "
        "is the limit. Larger mini-batches, or elastic averaging with a period above 1, exchange less often."
    )


def _moved(job: Job, volumes: Volumes, link: Link, touched: int | None) -> list[str]:
    """Description of the traffic of the job's own strategy where it is not exchanges through the shards."""
    strategy = job.strategy
    said = f"{strategy.name} as this job has it"
    if not volumes.replicas:
        return []
    if touched is not None:
        sent = f"{touched:,} numbers of {volumes.parameters:,}"
        return [f"{said} moves what a bundle of portions touches, {sent} or fewer, to a replica and back."]
    if isinstance(strategy, Sandblaster):
        return [f"{said} moves |W| to each replica in an iteration, and |W| back with each bundle of portions."]
    if isinstance(strategy, SyncSgd | Elastic) and strategy.grouped:
        reduction, numbers = strategy.reduction, volumes.parameters
        size = volumes.weight_bytes // (1 if reduction.wire is None else 2)
        way, chunk = reduction.way, reduction.chunk
        one = predict(way, volumes.replicas, size, numbers, link, chunk, reduction.arity)
        return [f"{said} sums {megabytes(size)} by {one}, in a step: {short_time(one.seconds)} on these links."]
    return []
