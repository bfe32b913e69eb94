"""The jobs of the simulation: every strategy, on a model whose result can be checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from .basin import MODEL as BASIN
from .marks import MODEL, ROWS, SAMPLES
from .rows import SimulatedTable

EPOCHS = 4
HEARTBEAT_TIMEOUT_S = 2.0
WORKERS = 3
COORDINATORS = ("coordinator-0", "coordinator-1", "coordinator")
"""Names of the two, and of the one that leads."""
LEASE_TTL_S = 3.0
"""Lease of the leading coordinator, and a tenth of it between two attempts to get it, as in production: there 10 s."""
_BLOCKS = (2,)


@dataclass(frozen=True)
class SimulatedJob:
    """One way to train.

    Attributes
    ----------
    strategy
        Section of the job file.
    pull
        Codec of what shards answer.
    counts
        Whether the parameters are exact counts of what was applied (`marks`).
    groups
        Whether workers average by all-reduce, and one of them pushes the results of blocks.
    averages
        Whether each sample adds at least one to such a count, more in a step of fewer than three replicas.
    best
        Whether the parameters of the best evaluation are the result.
    exact
        Whether a run without failures has the same bits (`basin`).
    replication
        Copies of each segment.
    clients
        Whether programs with loops of their own train, not replicas.
    reader
        Whether one more program reads the parameters all the time.
    epochs
        How often each sample is to be trained.
    limits
        Section of the job file, where it is not these epochs.
    push_samples
        Most samples behind a push.
    report_s
        Interval at which workers report their progress; 0: after every step, as where steps take long.
    batch
        Samples of a mini-batch, where that is not 4: the faults of a job are spread over its mini-batches.
    leases
        Samples of a lease, one of which a seed has; None: the job's default, which is small. The strategies that
        average by all-reduce push the result of a block only, a lease of each replica: here one of two steps.
    tables
        Of rows by key; replicas are scripts then.
    every_s
        Time from a snapshot set to the next.
    longest
        Bytes of a payload, beyond which it is cut, and of a message that is full; None: as in production.
    """

    strategy: str
    pull: str = "fp32"
    counts: bool = False
    groups: bool = False
    averages: bool = False
    best: bool = False
    exact: bool = False
    replication: int = 2
    clients: bool = False
    reader: bool = False
    epochs: int = EPOCHS
    limits: str = ""
    push_samples: int = 4
    batch: int = 4
    report_s: float = 0.4
    leases: tuple[int | None, ...] = (None, 64, 64)
    tables: tuple[SimulatedTable, ...] = ()
    every_s: float = 1.0
    longest: int | None = None

    @property
    def segments(self) -> int:
        """Segments of its shards, with buckets of tables."""
        return ROWS + sum(table.buckets for table in self.tables)

    @property
    def rounds(self) -> bool:
        """Whether gradients wait at the shards for those of all replicas."""
        return "staleness: 0" in self.strategy or self.local_steps

    @property
    def local_steps(self) -> bool:
        """Whether replicas step by themselves, and push what that has changed."""
        return self.strategy.startswith("name: diloco")

    @property
    def stretch(self) -> float:
        """Mini-batches of this job for each one of most jobs, which have 4 epochs of mini-batches of 4."""
        return self.epochs / EPOCHS * 4 / self.batch

    def text(self, data: Path, lease: int | None) -> str:
        """The job file; `lease`: samples of a lease, for strategies that lease data."""
        strategy = (
            self.strategy if lease is None or "sandblaster" in self.strategy else f"{self.strategy}, lease: {lease}"
        )
        source = "source: none" if self.clients else f"source: npz, file: {data}"
        file = f"{BASIN}:basin" if self.exact else f"{MODEL}:{'counts' if self.counts or self.averages else 'bowl'}"
        model = f'python: "{file}"'
        if self.tables:
            model, source = "source: script", f"source: script, train: {SAMPLES}"
        return f"""
name: simulated
model: {{{model}}}
data: {{{source}}}
strategy: {{{strategy}}}
wire: {{pull: {self.pull}}}
limits: {{{self.limits or f"epochs: {self.epochs}"}}}
shards: 2
replication: {self.replication}
replicas: {0 if self.clients else WORKERS}
deadlines: {{beat_s: {HEARTBEAT_TIMEOUT_S}, lease_s: 1.0, progress_s: 20, join_s: 120}}
snapshots: {{every_s: {self.every_s}}}
tables: {{{", ".join(table.section for table in self.tables)}}}
evaluate: {{every: {2 * SAMPLES}, keep: {"best" if self.best else "last"}}}
"""


_COUNT = "batch: 4, warm_start: null, rule: {name: sgd, rate: 1}"
_SEEN = SimulatedTable("seen", 2, 2, "{name: sgd, rate: 1}", "uniform(0.5)", SAMPLES)
_USED = SimulatedTable("used", 3, 3, "{name: lazy-adam, rate: 0.5}", "zeros", 17)
_USED_AND_KEPT = replace(_USED, more="cache: {rows: 14, age: 2}", near=True)
_MET = SimulatedTable("met", 4, 5, "{name: row-adagrad, rate: 1}", "uniform(0.25)", 60)
_MET_IN_HALVES = replace(_MET, push="bf16", more="pull: bf16")
_GROWN = SimulatedTable("grown", 4, 2, "{name: sgd, rate: 1}", "uniform(0.5)", 40, more="evict: {lru: 640}", own=200)
_AHEAD = SimulatedTable("ahead", 2, 2, "{name: sgd, rate: 1}", "zeros", 60, "int8", scaled=True, ahead=True)
_KEPT = SimulatedTable(
    "kept", 2, 2, "{name: sgd, rate: 1}", "uniform(0.5)", 17, more="cache: {rows: 14, age: 2}", near=True
)
_RARE = SimulatedTable(
    "rare", 2, 3, "{name: sgd, rate: 1}", "uniform(0.5)", SAMPLES, more="admit: {after: 2, counters: 1}, most_rows: 90"
)
_TWO = "batch: 2, warm_start: null, rule: {name: sgd, rate: 1}, n_push: 2"
JOBS = {
    "downpour": SimulatedJob(f"name: downpour, {_COUNT}", counts=True),
    "downpour-cadence": SimulatedJob(f"name: downpour, {_TWO}, n_fetch: 2", counts=True),
    "downpour-literal": SimulatedJob(f"name: downpour, {_TWO}, n_fetch: 1, literal: true", counts=True),
    "downpour-overlap": SimulatedJob(f"name: downpour, {_COUNT}, overlap: true", counts=True),
    "downpour-warm": SimulatedJob(
        "name: downpour, batch: 4, rule: {name: sgd, rate: 1}, warm_start: {samples: 200}", counts=True
    ),
    "bounded": SimulatedJob(f"name: downpour, {_COUNT}, staleness: 2", counts=True),
    "synchronous": SimulatedJob(
        "name: downpour, batch: 4, staleness: 0, warm_start: null, rule: {name: sgd, rate: 0.1}"
    ),
    "diloco": SimulatedJob(
        "name: diloco, batch: 2, steps: 2, fragments: 2, delay: 1, inner: {name: sgd, rate: 0.1}, "
        "outer: {name: nesterov, rate: 0.7, mu: 0.5}",
        pull="bf16",
    ),
    "diloco-quorum": SimulatedJob(
        "name: diloco, batch: 2, steps: 2, fragments: 2, delay: 1, inner: {name: sgd, rate: 0.1}, "
        "outer: {name: nesterov, rate: 0.7, mu: 0.5}, quorum: 2",
        pull="bf16",
    ),
    "adagrad": SimulatedJob("name: downpour, batch: 4, warm_start: null, rule: {name: adagrad, rate: 0.1}", best=True),
    "async-sgd": SimulatedJob("name: async-sgd, batch: 4, rate: 1", counts=True, reader=True),
    "async-msgd": SimulatedJob("name: async-msgd, batch: 4, rate: 0.01"),
    "hogwild-sgd": SimulatedJob("name: hogwild-sgd, batch: 4, rate: 1", counts=True, replication=1),
    "own-loop": SimulatedJob(
        "name: async-sgd, batch: 4, rate: 1",
        counts=True,
        clients=True,
        reader=True,
        limits=f"samples: {EPOCHS * SAMPLES}",
    ),
    "easgd": SimulatedJob("name: easgd, batch: 4, rate: 0.1"),
    "async-easgd": SimulatedJob("name: async-easgd, batch: 4, rate: 0.1", best=True),
    "async-measgd": SimulatedJob("name: async-measgd, batch: 4, rate: 0.01"),
    "hogwild-easgd": SimulatedJob("name: hogwild-easgd, batch: 4, rate: 0.1", replication=1),
    "sync-easgd": SimulatedJob("name: sync-easgd, batch: 4, rate: 0.1"),
    "sync-easgd-2": SimulatedJob(
        "name: sync-easgd, batch: 1, rate: 0.1, form: 2", groups=True, best=True, epochs=6, batch=1, leases=_BLOCKS
    ),
    "sync-easgd-3": SimulatedJob(
        "name: sync-easgd, batch: 1, rate: 0.1, form: 3", groups=True, epochs=6, batch=1, leases=_BLOCKS
    ),
    "sync-sgd": SimulatedJob(
        "name: sync-sgd, batch: 1, rule: {name: sgd, rate: 3}",
        groups=True,
        averages=True,
        epochs=6,
        batch=1,
        report_s=0,
        leases=_BLOCKS,
    ),
    "sandblaster": SimulatedJob(
        "name: sandblaster, portion: 8, bundle: 1, iterations: 4", exact=True, limits="epochs: 1_000"
    ),
    "tables": SimulatedJob(
        f"name: downpour, {_COUNT}", counts=True, tables=(_SEEN, _USED_AND_KEPT, _GROWN), every_s=0.2, longest=1 << 10
    ),
    "tables-bounded": SimulatedJob(
        f"name: downpour, {_COUNT}, staleness: 2", counts=True, tables=(_MET_IN_HALVES, _AHEAD, _KEPT)
    ),
    "tables-rounds": SimulatedJob(
        "name: downpour, batch: 4, staleness: 0, warm_start: null, rule: {name: sgd, rate: 0.1}",
        tables=(_MET, _USED, _RARE),
    ),
}
