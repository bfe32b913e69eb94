"""What a step's communication would take on links of a given speed, way by way, and which way to take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dbelief.core.reduction_tree import named
from dbelief.job import Elastic, Job, Sandblaster, SyncSgd
from dbelief.plan.allreduce_cost import Link, ring_seconds, shards_seconds, tree_seconds

from .memory import FLOAT32
from .shard_traffic import fetched_bytes, pushed_bytes
from .volumes import Volumes

CHUNK = 65_536
"""Numbers of a message where a sum is pipelined: a quarter of a MB, beside which a usual latency hardly counts."""

WAYS = ("server", "tree", "ring")
"""As a job file calls them (`strategy.reduction.way`)."""


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


def predict(
    way: str, replicas: int, size: float, numbers: int, link: Link, chunk: int | None = None, arity: int | None = None
) -> Sum:
    """One way, for a vector of so many numbers that is `size` bytes long on the wire; `chunk` None sends it whole."""
    ranks = max(1, replicas)
    sent = math.ceil(numbers / ranks) if way == "ring" else numbers
    chunks = 1 if chunk is None else max(1, math.ceil(sent / chunk))
    if way == "ring":
        return Sum(way, chunks, ring_seconds(ranks, size, link, chunks))
    return Sum(way, chunks, tree_seconds(named(way, ranks, arity), size, link, chunks))


def sums(replicas: int, numbers: int, link: Link, chunk: int = CHUNK) -> list[Sum]:
    """All ways for a vector of float32, unpipelined, and in chunks of so many numbers where that makes several."""
    size = FLOAT32 * numbers
    unpipelined = [predict(way, replicas, size, numbers, link) for way in WAYS]
    pipelined = [predict(way, replicas, size, numbers, link, chunk) for way in WAYS]
    return [*unpipelined, *(one for one in pipelined if one.chunks > 1)]


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


def communication(volumes: Volumes, speeds: Speeds, job: Job | None = None) -> Communication:
    """Predict it; None: of a network that no job trains."""
    compute_s = None if speeds.flops is None else volumes.samples * volumes.flop / speeds.flops
    found = sums(volumes.replicas, volumes.parameters, speeds.link)
    advice = [_parallel(volumes), _fastest(volumes, found)]
    if compute_s is not None and volumes.replicas > 1:
        advice.append(_bound(compute_s, found))
    if job is not None and volumes.replicas:
        advice.append(_moved(job, volumes, speeds.link))
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
    strategy = f"sync-sgd, reduction.way {best.way}"
    return f"Sum by {best} ({strategy}): it takes {clock(best.seconds)}; {other}, {times:.3g} times as long."


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


def _moved(job: Job, volumes: Volumes, link: Link) -> str:
    """What the job's own strategy moves: among the workers, or through the shards."""
    strategy, shards = job.strategy, job.shards
    said = f"{strategy.name} as this job has it"
    if isinstance(strategy, Sandblaster):
        return f"{said} moves |W| to each replica in an iteration, and |W| back with each bundle of portions."
    if isinstance(strategy, SyncSgd | Elastic) and strategy.grouped:
        reduction, numbers = strategy.reduction, volumes.parameters
        size = volumes.weight_bytes // (1 if reduction.wire is None else 2)
        way, chunk = reduction.way, reduction.chunk
        one = predict(way, volumes.replicas, size, numbers, link, chunk, reduction.arity)
        return f"{said} sums {megabytes(size)} by {one}, in a step: {clock(one.seconds)} on these links."
    fetches, pushes = 1 / strategy.n_fetch, 1 / strategy.n_push
    fetched, pushed = (of(job.wire, volumes.parameters) for of in (fetched_bytes, pushed_bytes))
    in_step, most = strategy.staleness == 0, "at most " if job.wire.push.name == "threshold" else ""
    least = shards_seconds(
        volumes.replicas, shards, (fetched, pushed), link, fetches=fetches, pushes=pushes, in_step=in_step
    )
    moved = f"{most}{megabytes(fetched * fetches + pushed * pushes)}"
    return (
        f"{said} moves {moved} for each mini-batch of a replica through {shards} "
        f"{'shard' if shards == 1 else 'shards'}: on these links one takes "
        f"{clock(least)}{' beside computing' if in_step else ', or computing where that is longer'}."
    )
