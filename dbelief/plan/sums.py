"""What a step's communication would take on links of a given speed, way by way, and which way to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dbelief.job import Downpour, Elastic, Sandblaster
from dbelief.reduction import Link, Shape, binomial, ring_seconds, server, shards_seconds, tree_seconds

from .memory import FLOAT32
from .volumes import Volumes

CHUNK = 65_536
"""Numbers of a message where a sum is pipelined: a quarter of a MB, beside which a usual latency hardly counts."""

TREES: Mapping[str, Callable[[int], Shape]] = {"server": server, "tree": binomial}


@dataclass(frozen=True)
class Speeds:
    """Of the machines that a job is planned for.

    Attributes
    ----------
    latency_s
        Of a message of no bytes.
    bandwidth
        Of each machine's link, in each direction: bytes a second.
    flops
        Of one replica: floating-point operations a second; None where nothing was said.
    """

    latency_s: float = 1e-4
    bandwidth: float = 125e6
    flops: float | None = None

    @property
    def link(self) -> Link:
        """As formulas take it."""
        return Link(self.latency_s, 1 / self.bandwidth)


GIGABIT = Speeds()
"""What is taken where nothing is said."""


@dataclass(frozen=True)
class Sum:
    """One way to sum a gradient over all replicas: parts that its messages are cut in, and seconds."""

    way: str
    chunks: int
    seconds: float

    def __str__(self) -> str:
        return f"the {self.way}" + (f" in {self.chunks:,} chunks" if self.chunks > 1 else ", unpipelined")


def sums(replicas: int, numbers: int, link: Link, chunk: int = CHUNK) -> list[Sum]:
    """Every way of `dbelief.reduction`, whole and in chunks of so many numbers (of float32)."""
    ranks, size, found = max(1, replicas), FLOAT32 * numbers, []
    pieces = {"server": numbers, "tree": numbers, "ring": math.ceil(numbers / ranks)}
    for pipelined in (False, True):
        for way, sent in pieces.items():
            chunks = math.ceil(sent / chunk) if pipelined else 1
            if pipelined and chunks == 1:
                continue
            if way == "ring":
                found.append(Sum(way, chunks, ring_seconds(ranks, size, link, chunks)))
            else:
                found.append(Sum(way, chunks, tree_seconds(TREES[way](ranks), size, link, chunks)))
    return found


@dataclass(frozen=True)
class Communication:
    """A step's communication.

    Attributes
    ----------
    compute_s
        Of one replica's mini-batch; None where nobody said how fast it is.
    sums
        Ways to sum a gradient over the replicas.
    advice
        What to take and why, a sentence each.
    """

    volumes: Volumes
    speeds: Speeds
    compute_s: float | None
    sums: Sequence[Sum]
    advice: Sequence[str]

    def described(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **self.volumes.described(),
            **asdict(self.speeds),
            "compute_s": self.compute_s,
            "sums": [asdict(one) for one in self.sums],
            "advice": list(self.advice),
        }


def communication(
    volumes: Volumes, speeds: Speeds, strategy: Downpour | Sandblaster | Elastic | None = None, shards: int = 1
) -> Communication:
    """Predict it; `strategy` and `shards` are the job's, None where there is no job."""
    compute_s = None if speeds.flops is None else volumes.samples * volumes.flop / speeds.flops
    found = sums(volumes.replicas, volumes.parameters, speeds.link)
    advice = [_parallel(volumes), _fastest(volumes, found)]
    if compute_s is not None and volumes.replicas > 1:
        advice.append(_bound(compute_s, found))
    if strategy is not None and volumes.replicas:
        advice.append(_moved(strategy, shards, volumes, speeds.link))
    return Communication(volumes, speeds, compute_s, found, advice)


def megabytes(count: float) -> str:
    """Bytes in the papers' units, powers of 1000."""
    power = 1 if count < 1e5 else 2 if count < 1e10 else 3
    return f"{count / 1000**power:,.4g} {' kMG'[power]}B"


def clock(seconds: float) -> str:
    """A time in the unit that suits it."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _parallel(volumes: Volumes) -> str:
    weights, data = megabytes(volumes.weight_bytes), megabytes(volumes.data_bytes)
    if volumes.data_parallel:
        return f"Data parallelism: gradients, {weights}, are less to exchange than activations, {data}."
    return (
        f"Model parallelism, a grid of ranks for each replica (docs/ranks.md): activations, {data}, are less to "
        f"exchange than gradients, {weights}; or larger mini-batches."
    )


def _fastest(volumes: Volumes, found: Sequence[Sum]) -> str:
    if volumes.replicas < 2:
        return "One replica has nothing to sum."
    best, other = min(found, key=lambda one: one.seconds), found[0]
    times = other.seconds / best.seconds
    return f"Sum by {best}: it takes {clock(best.seconds)}; {other}, {times:.3g} times as long."


def _bound(compute_s: float, found: Sequence[Sum]) -> str:
    best, worst = (pick(one.seconds for one in found) for pick in (min, max))
    if compute_s >= worst:
        return f"Computing takes {clock(compute_s)}, longer than any of these sums: any of them will do."
    if compute_s >= best:
        return f"Computing takes {clock(compute_s)}, longer than the fastest sum and shorter than the slowest."
    return (
        f"Computing takes {clock(compute_s)}, {100 * compute_s / (compute_s + best):.2g} % of a step: the network is "
        "the limit. Larger mini-batches, or elastic averaging with a period above 1, exchange less often."
    )


def _moved(strategy: Downpour | Sandblaster | Elastic, shards: int, volumes: Volumes, link: Link) -> str:
    """What the job's own strategy moves, which goes through the shards."""
    if isinstance(strategy, Sandblaster):
        return "sandblaster moves |W| to each replica in an iteration, and |W| back with each bundle of portions."
    moved = volumes.weight_bytes * (1 / strategy.n_fetch + 1 / strategy.n_push)
    in_step = strategy.staleness == 0
    least = shards_seconds(
        volumes.replicas,
        shards,
        volumes.weight_bytes,
        link,
        fetches=1 / strategy.n_fetch,
        pushes=1 / strategy.n_push,
        in_step=in_step,
    )
    return (
        f"{strategy.name} as this job has it moves {megabytes(moved)} for each mini-batch of a replica through "
        f"{shards} {'shard' if shards == 1 else 'shards'}: on these links one takes "
        f"{clock(least)}{' beside computing' if in_step else ', or computing where that is longer'}."
    )
