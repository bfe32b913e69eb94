"""Configurations of real jobs, drawn from a seed: some for the calibration of the simulation, others to be predicted.

The numbers of each kind are fixed (`KINDS`, `KILLS`, `LINKED`, `WAITING`); what the seed draws is which job has which
model, strategy, dials, link, slow machines and kill. Nothing depends on a measurement, so that what is predicted was
chosen before it was seen. A worker that waits stands for a slow machine: it waits in each mini-batch, without using a
processor. Others compute, and share the processors of this machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.coordinator import members

CALIBRATION, PREDICTED = "calibration", "predicted"
PARTS = (CALIBRATION, PREDICTED)
COORDINATOR, SANDBLASTER = "coordinator", "sandblaster"
KINDS: Mapping[str, tuple[int, int]] = {
    "downpour": (2, 9),
    "elastic": (1, 4),
    "sync-sgd": (2, 5),
    "diloco": (2, 6),
    SANDBLASTER: (1, 1),
    COORDINATOR: (2, 5),
}
"""Configurations of each kind, in both parts. `coordinator`: simulated members without models (coordinator/members.py).
"""
KILLS: Mapping[str, tuple[int, int]] = {
    "worker": (1, 3),
    "shard": (1, 2),
    "followed shard": (1, 2),
    "coordinator": (1, 2),
}
LINKED, WAITING = (3, 8), (0, 6)
"""Jobs on links, whose workers all wait; further jobs whose workers wait. For the calibration they are the second ones
of their kinds, so that of each kind one computes.
"""
AT_SHARDS = ("downpour", "elastic", "diloco")
"""Kinds whose shards are needed for each exchange."""

LOSS = "softmax_cross_entropy"
ROWS = {"source": "synthetic", "kind": "classes", "samples": 100_000, "features": 64, "classes": 10, "noise": 0.5}
WIDE_ROWS = {**ROWS, "samples": 20_000, "features": 784}
DIGITS = {"source": "digits"}
"""None of them needs a file: the product has the digits."""
HARD = 3.0
"""Noise for a batch method, which would find the best parameters of easy data, and end."""
IMAGE = {"image": {"height": 8, "width": 8}}
CLASSES = {"dense": 10}


@dataclass(frozen=True)
class Network:
    """A model and its data; `parameters`: their number."""

    layers: Sequence[Any]
    data: Mapping[str, Any]
    parameters: int


NETWORKS: Mapping[str, Network] = {
    "small": Network([{"dense": 32}, "relu", CLASSES], ROWS, 2_410),
    "digits": Network([{"dense": 64}, "relu", CLASSES], DIGITS, 4_810),
    "wide": Network([{"dense": 512}, "relu", CLASSES], ROWS, 38_410),
    "deep": Network([*([{"dense": 128}, "relu"] * 4), CLASSES], ROWS, 59_146),
    "mnist-sized": Network([{"dense": 256}, "relu", CLASSES], WIDE_ROWS, 203_530),
    "large": Network([*([{"dense": 560}, "relu"] * 2), CLASSES], ROWS, 356_170),
    "convolution": Network([IMAGE, {"conv": {"maps": 24, "kernel": 3}}, "relu", {"max_pool": 2}, CLASSES], ROWS, 2_410),
    "local": Network([IMAGE, {"local": {"window": 4, "block": 2, "maps": 8}}, "relu", CLASSES], ROWS, 7_786),
}
BATCHES = (8, 16, 32, 64, 128)
PUSHED = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.1, "int4": 0.6, "one-bit": 0.2}
"""Bytes of a number, about."""
PULLED = ("fp32", "fp32", "fp16", "bf16")
LONGEST_ROUND_S, LONGEST_TRAVEL_S = 2.0, 1.5
"""Between two exchanges of a worker, and of one exchange where all have theirs at once: a run has dozens."""
AWAY_S = (0.0, 0.0, 8.0)
"""Seconds until what was killed is started again; at 8 its heartbeats are missed before."""
PACED = ((1,), (1, 3))
"""Which of a part's loads of a coordinator are paced; others are closed loops."""
PACES_S = (5.0, 10.0)
WAYS = (("tree", "shards"), ("ring", "server", "shards", "tree"))
"""Of the sums of each part, in turn."""
MEMBERS = (16, 32, 64, 128, 256, 512)
MOST_MEMBERS = 1_000
"""Of the first paced load of each part, and of the last one to be predicted."""


@dataclass(frozen=True)
class SlowNet:
    """The link of each host to a switch, in both directions.

    Attributes
    ----------
    rate_mbit, delay_ms
        Its rate, and the time of a packet from a host to the switch.
    apart
        Whether the shards have hosts of their own; else each is beside a worker.
    """

    rate_mbit: float
    delay_ms: float
    apart: bool

    @property
    def bytes_per_s(self) -> float:
        """Its rate."""
        return self.rate_mbit * 1e6 / 8


@dataclass(frozen=True)
class PlannedKill:
    """SIGKILL of one process.

    Attributes
    ----------
    role
        One of `KILLS`; of a followed shard the leader.
    away_s
        Seconds until it is started again.
    """

    role: str
    away_s: float


@dataclass(frozen=True)
class Configuration:
    """One run.

    Attributes
    ----------
    number
        From 0; the order in which they are run is another one.
    kind
        One of `KINDS`.
    job
        Fields of the job file.
    network
        Name of the model, one of `NETWORKS`; "" where there is none.
    waits_s
        By worker, seconds in each mini-batch in place of computing.
    members, every_s
        Of a coordinator's load: its members, and seconds between a member's leases; 0: as many as it can serve.
    """

    number: int
    part: str
    kind: str
    job: Mapping[str, Any]
    network: str = ""
    waits_s: Sequence[float] = ()
    link: SlowNet | None = None
    kill: PlannedKill | None = None
    members: int = 0
    every_s: float = 0.0

    @property
    def waiting(self) -> bool:
        """Whether its workers wait."""
        return any(self.waits_s)

    @property
    def name(self) -> str:
        """What tells it from the others, in a few words."""
        if self.kind == COORDINATOR:
            pace = f"every {self.every_s:g} s" if self.every_s else "closed loop"
            return f"coordinator, {self.members} members, {pace}"
        words = [self.job["strategy"]["name"], self.network, f"{len(self.waits_s)} workers {self.job['shards']} shards"]
        words += [f"wait {1e3 * self.waits_s[0]:.0f} ms"] if self.waiting else []
        words += [f"{self.link.rate_mbit:g} Mbit/s {self.link.delay_ms:g} ms"] if self.link else []
        words += [f"kill {self.kill.role}"] if self.kill else []
        return ", ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Configuration:
        """The inverse of `to_dict`."""
        link, kill = row["link"], row["kill"]
        nested = {"link": SlowNet(**link) if link else None, "kill": PlannedKill(**kill) if kill else None}
        return cls(**{**row, **nested, "waits_s": tuple(row["waits_s"])})


@dataclass
class _Draft:
    """What one job is drawn from."""

    kind: str
    network: str
    linked: bool = False
    waiting: bool = False
    killed: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


def make_plan(seed: int) -> list[Configuration]:
    """All configurations of a seed, those for the calibration first."""
    found: list[Configuration] = []
    for place, part in enumerate(PARTS):
        rng = random.Random(f"{seed} {part}")
        for draft in _drafts(place, rng):
            made = _coordinator(draft, rng) if draft.kind == COORDINATOR else _job(draft, rng)
            found.append(dataclasses.replace(made, number=len(found), part=part))
    return found


def _drafts(place: int, rng: random.Random) -> list[_Draft]:
    """Drafts of a part: which job is on links, which waits, and what is killed."""
    kinds = [kind for kind, counts in KINDS.items() for _ in range(counts[place])]
    networks = itertools.cycle(rng.sample(list(NETWORKS), len(NETWORKS)))
    drafts = [_Draft(kind, "" if kind == COORDINATOR else next(networks)) for kind in kinds]
    trained = [draft for draft in drafts if draft.kind not in (COORDINATOR, SANDBLASTER)]
    again = [draft for before, draft in itertools.pairwise(trained) if before.kind == draft.kind]
    waiting = again if place == 0 else rng.sample(trained, LINKED[place] + WAITING[place])
    for number, draft in enumerate(waiting):
        draft.waiting, draft.linked = True, number < LINKED[place]
    free = rng.sample(trained, len(trained))
    for role in sorted(KILLS, key=lambda role: "shard" not in role):  # those that do not fit every job first
        fits = [draft for draft in free if "shard" not in role or draft.kind in AT_SHARDS]
        for draft in fits[: KILLS[role][place]]:
            draft.killed = role
            free.remove(draft)
    loads = [draft for draft in drafts if draft.kind == COORDINATOR]
    for number, (draft, count) in enumerate(zip(loads, rng.sample(MEMBERS, len(loads)), strict=True)):
        most = number == PACED[place][0] or (place == 1 and number == len(loads) - 1)
        draft.fields = {"paced": number in PACED[place], "members": MOST_MEMBERS if most else count}
    for number, draft in enumerate(one for one in drafts if one.kind == "sync-sgd"):
        draft.fields = {"way": WAYS[place][number % 4]}
    for number, draft in enumerate(one for one in drafts if one.kind == "diloco"):
        draft.fields = {"quorum": number % 2 == 1}
    return drafts


def _coordinator(draft: _Draft, rng: random.Random) -> Configuration:
    count = draft.fields["members"]
    every_s = rng.choice(PACES_S) if draft.fields["paced"] else 0.0
    return Configuration(0, "", COORDINATOR, members.job(count), members=count, every_s=every_s)


def _job(draft: _Draft, rng: random.Random) -> Configuration:
    """A job; drawn again until its link carries its exchanges in `LONGEST_TRAVEL_S`."""
    while True:
        made = _drawn(draft, rng)
        if made.link is None or travel_s(made) <= LONGEST_TRAVEL_S:
            return made
        draft.network = rng.choice(list(NETWORKS))


def _drawn(draft: _Draft, rng: random.Random) -> Configuration:
    kind, killed = draft.kind, draft.killed
    waits_s = _waits(draft, rng)
    batch = rng.choice(BATCHES)
    strategy = _strategy(draft, batch, waits_s, rng)
    through = kind in AT_SHARDS
    wire = {"push": rng.choice(_codecs(kind)), "pull": rng.choice(PULLED)} if through else {}
    link = None
    if draft.linked:
        rate, delay = round(10 * 20 ** rng.random()), round(20 ** rng.random(), 1)
        link = SlowNet(rate, delay, apart=rng.random() < 0.5)
    kill = PlannedKill(killed, rng.choice(AWAY_S)) if killed else None
    if kind == SANDBLASTER and draft.network == "digits":
        draft.network = "wide"
    network = NETWORKS[draft.network]
    job = {
        "name": "simulate",
        "model": {"layers": list(network.layers), "loss": LOSS},
        "data": {**network.data, "noise": HARD} if kind == SANDBLASTER else dict(network.data),
        "strategy": strategy,
        "wire": wire,
        "limits": {"wall_s": 36_000},
        "evaluate": {"every": 10**12, "keep": "last"},
        "divergence": {"factor": 1e9},
        "snapshots": {"every_s": 3 if killed == "shard" else None},
        "shards": rng.randint(1, 3),
        "replication": 2 if killed == "followed shard" else 1,
        "replicas": len(waits_s),
    }
    return Configuration(0, "", kind, job, draft.network, waits_s, link, kill)


def _waits(draft: _Draft, rng: random.Random) -> tuple[float, ...]:
    """By worker; in a third of the jobs, and wherever a quorum is, the last one is a straggler."""
    quorum = draft.fields.get("quorum", False)
    least = 3 if quorum else 2 if draft.killed or draft.kind in ("sync-sgd", SANDBLASTER) else 1
    if not draft.waiting:
        return (0.0,) * max(least, rng.choice((1, 2, 2, 3, 4, 6)))
    wait_s = round(0.02 * 10 ** rng.random(), 3)
    slow = rng.choice((2, 3, 5)) if quorum or rng.random() < 1 / 3 else 1
    return (wait_s,) * (rng.randint(max(2, least), 8) - 1) + (min(0.2, slow * wait_s),)


def _codecs(kind: str) -> list[str]:
    """Codecs of pushes, float32 twice; elastic averaging takes those that leave nothing out."""
    return ["fp32", *([name for name in PUSHED if kind != "elastic" or name in ("fp32", "fp16", "bf16")])]


def _strategy(draft: _Draft, batch: int, waits_s: Sequence[float], rng: random.Random) -> dict[str, Any]:
    """The section of the strategy."""
    rule = rng.choice(({"name": "sgd", "rate": 0.001}, {"name": "adagrad", "rate": 0.01}))

    def steps(*known: int) -> int:
        return rng.choice([1, *(one for one in known if one * max(waits_s) <= LONGEST_ROUND_S)])

    if draft.kind == SANDBLASTER:
        return {"name": SANDBLASTER, "portion": rng.choice((500, 1_000, 2_000)), "bundle": rng.choice((2, 4))}
    made: dict[str, Any]
    if draft.kind == "downpour":
        made = {"name": "downpour", "rule": rule, "n_push": steps(2, 4, 8), "overlap": rng.random() < 1 / 3}
        made |= {"n_fetch": rng.choice((1, made["n_push"])), "warm_start": None}
    elif draft.kind == "elastic":
        made = {"name": "async-easgd", "rate": 0.001, "period": steps(2, 4, 8, 16)}
    elif draft.kind == "sync-sgd":
        way = draft.fields["way"]
        form = {"form": "shards"} if way == "shards" else {"reduction": {"way": way}}
        made = {"name": "sync-sgd", "rule": rule, **form}
    else:
        made = {"name": "diloco", "steps": max(2, steps(4, 8, 16, 32)), "inner": rule}
        made |= {"quorum": len(waits_s) - 1} if draft.fields["quorum"] else {}
    made["batch"] = batch
    if rng.random() < 1 / 3:
        cycle = max(made.get(name, 1) for name in ("n_push", "n_fetch", "period", "steps"))
        made["lease"] = batch * cycle * rng.choice((8, 32))
    return made


def travel_s(made: Configuration) -> float:
    """About the time of a link's bytes where all workers exchange at once, without its delay."""
    if made.link is None:
        return 0.0
    numbers, workers, strategy = NETWORKS[made.network].parameters, len(made.waits_s), made.job["strategy"]
    if strategy.get("form", "workers") == "workers" and made.kind == "sync-sgd":
        times = workers - 1 if strategy["reduction"]["way"] == "server" else 2
        return float(4.0 * numbers * times / made.link.bytes_per_s)
    wire = made.job["wire"]
    pushed, pulled = (PUSHED[wire.get(way, "fp32")] for way in ("push", "pull"))
    return float(max(pushed, pulled) * numbers * workers / made.job["shards"] / made.link.bytes_per_s)
