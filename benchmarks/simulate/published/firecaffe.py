"""FireCaffe (Iandola et al. 2016): speed-up on ImageNet by GPUs, and a reduction tree against a parameter server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .comparison import Claim, Comparison, Point
from .simulated import RULE, outcome_of, step_s

IMAGES = 1.2e6
"""Section 1.1: of ImageNet-1k's training set."""
DAY_S = 86400.0
GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
CHUNK = 65_536
"""Numbers of a message of the server that sends while it adds."""


@dataclass(frozen=True)
class Network:
    """A network of the paper: bytes of its weights (Table 1), epochs and days on one GPU (Tables 2 and 3)."""

    name: str
    size: float
    epochs: float
    days: float

    @property
    def images_per_s(self) -> float:
        """Of one GPU."""
        return self.epochs * IMAGES / (self.days * DAY_S)


NIN = Network("NiN", 30e6, 47, 5.8)
GOOGLENET = Network("GoogLeNet", 54e6, 64, 21)


@dataclass(frozen=True)
class Speedup:
    """A speed-up that the paper has: images of a mini-batch over all GPUs, and epochs as a multiple of one GPU's."""

    network: Network
    gpus: int
    batch: int
    times: float
    source: str
    epochs: float = 1.0

    @property
    def method(self) -> str:
        """Its curve."""
        return f"{self.network.name}, batch {self.batch:,}"


FIT = Speedup(NIN, 32, 1024, 23, "Table 2")
LATER = "abstract of the version of 2016, through liner.com/review/firecaffe-nearlinear-acceleration"
SPEEDUPS = (
    FIT,
    Speedup(NIN, 32, 256, 13, "Table 2"),
    Speedup(NIN, 128, 1024, 39, LATER),
    Speedup(GOOGLENET, 32, 1024, 16, "Table 3", 72 / 64),
    Speedup(GOOGLENET, 128, 1024, 47, LATER, 72 / 64),
)
ASSUMED = (
    "bandwidth of a node: so that NiN at 32 GPUs with a batch of 1,024 has its speed-up of 23 (Table 2) with Eq. 4; "
    "the paper says only that it is that of an InfiniBand-class switch (sec. 2)",
    "messages have no latency, additions take no time, all mini-batches take the same; Eqs. 3 and 4 have no more",
    "a GPU computes a mini-batch of any size at the images/s that one GPU has in Tables 2 and 3",
    "GoogLeNet takes 72 epochs with a mini-batch of 1,024, against 64 on one GPU (Table 3), at all numbers of GPUs",
    "the speed-ups at 128 GPUs are those of the later version's abstract, from a review of it; the text that was read "
    "ends at 32",
)
LEFT_OUT = (
    "the measured points of Fig. 4: they are plotted only; Eqs. 3 and 4, which it confirms, stand for them",
    "footnote 3, that communication and computing of NiN take the same at 32 GPUs: the paper's own speed-up of 23 "
    "leaves communication at (32 - 23) / 23 = 39 % of computing",
    "speed-ups at other numbers of GPUs: the paper has none",
)


def bandwidth(of: Speedup = FIT) -> float:
    """Bytes a second of a node that a speed-up requires, by Eq. 4."""
    one_s = of.batch / of.network.images_per_s
    communication_s = one_s / (of.times * of.epochs) - one_s / of.gpus
    return 2 * math.log2(of.gpus) * of.network.size / communication_s


def seconds_a_step(network: Network, gpus: int, batch: int, rate: float, way: Mapping[str, Any]) -> float:
    """Seconds of a step of all GPUs."""
    share = batch / gpus
    compute_s = share / network.images_per_s
    strategy = {"name": "sync-sgd", "batch": max(1, round(share)), "rule": RULE, **way}
    workers = {"name": "gpus", "machines": gpus, "step": compute_s, "spread": 0.0, "link": rate}
    server = {"name": "server", "workers": 0, "shards": 1, "link": rate}
    seconds = 100 * (compute_s + 2 * gpus * network.size / rate)
    outcome = outcome_of(strategy, [workers, server], network.size / 4, seconds)
    return step_s(outcome, max(1, round(share)))


TREE: Mapping[str, Any] = {"reduction": {"way": "tree"}}
SERVERS: Mapping[str, Mapping[str, Any]] = {
    "reduction tree": TREE,
    "server among workers, in chunks": {"reduction": {"way": "server", "chunk": CHUNK}},
    "server of shards": {"form": "shards"},
}


def compare_speedups() -> Comparison:
    """Speed-ups of Tables 2 and 3, and curves from 1 to 128 GPUs."""
    rate = bandwidth()
    points, found = [], {(one.method, one.gpus): one for one in SPEEDUPS}
    for method in dict.fromkeys(one.method for one in SPEEDUPS):
        of = next(one for one in SPEEDUPS if one.method == method)
        for gpus in GPUS:
            taken_s = seconds_a_step(of.network, gpus, of.batch, rate, TREE)
            times = of.batch / of.network.images_per_s / taken_s / of.epochs
            paper = found.get((method, gpus))
            stated = (None, "") if paper is None else (paper.times, paper.source)
            points.append(Point(method, gpus, stated[0], times, stated[1], paper is FIT))
    each = ", ".join(f"{bandwidth(one) / 1e9:.1f} ({one.method} at {one.gpus})" for one in SPEEDUPS)
    return Comparison(
        "firecaffe",
        "Iandola et al. 2016, FireCaffe",
        "GPUs",
        "speed-up over one GPU",
        points,
        assumed=(f"{ASSUMED[0]}: {rate / 1e9:.2f} GB/s; each speed-up by itself requires {each}", *ASSUMED[1:]),
        left_out=LEFT_OUT[1:],
        log=True,
    )


def compare_sums() -> Comparison:
    """Communication of one step of NiN: a reduction tree and a parameter server, Fig. 4."""
    rate, points = bandwidth(), []
    for method, way in SERVERS.items():
        for gpus in GPUS[1:]:
            # The mini-batch takes a thousandth of a second, which is subtracted.
            of = Network(NIN.name, NIN.size, 1.0, IMAGES / (1000 * DAY_S))
            taken_s = seconds_a_step(of, gpus, gpus, rate, way) - 1 / of.images_per_s
            tree = method == "reduction tree"
            factor = 2 * math.log2(gpus) if tree else gpus
            points.append(Point(method, gpus, factor * NIN.size / rate, taken_s, "Eq. 4" if tree else "Eq. 3"))
    at = {(point.method, point.x): point.simulated for point in points}
    doubled = [at["server of shards", 2 * gpus] / at["server of shards", gpus] for gpus in GPUS[1:-1]]
    wins = all(at["reduction tree", gpus] < at["server among workers, in chunks", gpus] for gpus in GPUS if gpus > 4)
    return Comparison(
        "firecaffe-sums",
        "Iandola et al. 2016, FireCaffe",
        "GPUs",
        "seconds of one sum of 30 MB",
        points,
        (
            Claim(
                "twice the workers take at least twice as long with a server",
                "sec. 6.1",
                min(doubled) >= 2,
                f"{min(doubled):.2f} to {max(doubled):.2f} times as long: of p workers those that have their answer "
                "push the next gradient while others still fetch, which takes (p + 1) |W| / BW a step",
            ),
            Claim("a tree is faster than a server, from 8 GPUs on", "sec. 6.2, Eqs. 3 and 4", wins),
        ),
        assumed=(
            f"bandwidth as for the speed-ups, {rate / 1e9:.2f} GB/s",
            "a server among the workers is one of them, so that it has p - 1 others; it sends in chunks while it adds",
            "the tree's time is Eq. 4 in the simulation too: its ratio of 1 checks the arithmetic only; the server of "
            "shards is simulated message by message",
        ),
        left_out=LEFT_OUT[:1],
        log=True,
    )
