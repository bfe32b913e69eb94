"""Training progress: loss, staleness, evaluations, and the reasons to release, to stop or to fail. No clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from .divergence import DivergenceDetector
from .messages import WAYS, ProgressReport, ResourceUsage
from .tracked import TrackedDict
from .warm_start import WarmStart

_KEPT = (
    "samples", "steps", "pushes", "lost", "steps_left_out", "rounds", "staleness_sum", "without_gain",
    "next_evaluation",
)  # fmt: skip
"""Plain fields that a snapshot set holds."""

_MOST = 2**63 - 1
"""Largest count that a message can hold."""
OVER = 0
"""Key in place of an incarnation (they count from 1): the sum over all settled incarnations."""


@dataclass
class Best:
    """The best evaluation so far and the named vector that holds its parameters."""

    vector: str
    loss: float
    accuracy: float | None
    samples: int
    measured: dict[str, float] = field(default_factory=dict)


@dataclass
class Evaluated:
    """Outcome of one evaluation; `measured`: metrics by name, those that are defined for its samples."""

    loss: float
    accuracy: float | None
    samples: int
    measured: dict[str, float] = field(default_factory=dict)

    def kept_as(self, vector: str) -> Best:
        """The best evaluation, with its parameters under this name."""
        return Best(vector, self.loss, self.accuracy, self.samples, self.measured)


_NAMED = ("spent", "wire", "cache_reads", "cache_hits")
"""Fields of `ReplicaStats` with figures by incarnation and name."""
_BY_INCARNATION = (*_NAMED, "stale")


@dataclass
class ReplicaStats:
    """Statistics of one replica number, over all its incarnations.

    `spent` is the seconds by phase, `stale` the pushes by staleness, `wire` the bytes "sent" and "received" and the
    "residual" of the codec, `cache_reads` and `cache_hits` the keys by table. All are keyed by incarnation as text,
    because JSON has only text keys. Settled incarnations share one row, so that the size stays bounded when workers
    join and leave.
    """

    samples: int = 0
    pushes: int = 0
    steps: int = 0
    staleness_sum: float = 0.0
    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    stale: dict[str, list[int]] = field(default_factory=dict)
    wire: dict[str, dict[str, float]] = field(default_factory=dict)
    cache_reads: dict[str, dict[str, float]] = field(default_factory=dict)
    cache_hits: dict[str, dict[str, float]] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """A copy of all fields, JSON-serialisable; `dataclasses.asdict` would copy every number by itself."""
        return vars(self) | {
            name: {key: row.copy() for key, row in vars(self)[name].items()} for name in _BY_INCARNATION
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase."""
        return _added(self.spent)

    @property
    def incarnations(self) -> set[str]:
        """Keys of all rows."""
        return {key for name in _BY_INCARNATION for key in getattr(self, name)}

    def settle(self, incarnation: int) -> bool:
        """Merge the rows of an incarnation that reports no more into the shared row; whether it had any."""
        life, over = str(incarnation), str(OVER)
        if life not in self.incarnations:
            return False
        for rows in (getattr(self, name) for name in _NAMED):
            if life in rows:
                rows[over] = _added({name: rows.pop(name) for name in (over, life) if name in rows})
        if life in self.stale:
            self.stale[over] = _columns([self.stale.pop(life), self.stale.get(over, [])])
        return True

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of segments sent to shards and received from them, by `WAYS`; {} where no report had any."""
        total = _added(self.wire)
        return {way: int(total[way]) for way in WAYS if way in total}

    @property
    def moved(self) -> dict[str, int]:
        """Bytes of segments "sent" and "received", in messages and through shared memory together."""
        total = self.bytes
        return {way: total.get(way, 0) + total.get(f"shared_{way}", 0) for way in ("sent", "received")}


def _added(incarnations: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in incarnations.values() for name in row)
    return {name: sum(row.get(name, 0.0) for row in incarnations.values()) for name in names}


def _columns(rows: Iterable[Sequence[int]]) -> list[int]:
    """Sums by column; shorter rows are padded with 0."""
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


@dataclass
class TrainingProgress:
    """Running figures of one job.

    Attributes
    ----------
    evaluate_every
        Samples between evaluations on validation data; None: never.
    keep_best
        Whether the parameters of the best evaluation are kept on the shards.
    targets
        Values of metrics at which the job stops, by name.
    higher
        By metric, whether higher values are better.
    best_by
        Metric that decides which evaluation is the best; None: accuracy, else loss.
    warm_start, divergence
        See `WarmStart` and `DivergenceDetector`, which averages the loss.
    restored
        By replica, samples trained before this object was restored from a state.
    """

    evaluate_every: int | None = None
    keep_best: bool = False
    target_accuracy: float | None = None
    target_loss: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    higher: Mapping[str, bool] = field(default_factory=dict)
    best_by: str | None = None
    patience: int | None = None
    warm_start: WarmStart = field(default_factory=WarmStart)
    divergence: DivergenceDetector = field(default_factory=DivergenceDetector)

    samples: int = 0
    steps: int = 0
    pushes: int = 0
    lost: int = 0  # pushes lost with a failed shard
    steps_left_out: int = 0  # by loss scalers
    rounds: int = 0  # in lockstep: those that are over, as far as replicas have reported
    staleness_sum: float = 0.0
    staleness: float = math.nan  # of the latest pushes, in versions
    best: Best | None = None
    last: Evaluated | None = None
    test: Evaluated | None = None
    without_gain: int = 0
    next_evaluation: int = 0
    replicas: TrackedDict[int, ReplicaStats] = field(default_factory=TrackedDict)
    restored: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.next_evaluation = self.evaluate_every or 0

    @property
    def loss(self) -> float:
        """Average training loss; NaN before the first report."""
        return self.divergence.loss

    @property
    def staleness_mean(self) -> float:
        """Mean staleness over all pushes so far, in versions; NaN before the first."""
        return self.staleness_sum / self.pushes if self.pushes else math.nan

    def samples_of(self, replica: int) -> int:
        """Samples that one replica number has trained."""
        return self.replicas[replica].samples if replica in self.replicas else 0

    @property
    def samples_since(self) -> int:
        """Samples trained since this object was created or restored, for the throughput."""
        return self.samples - sum(self.restored.values())

    def samples_of_since(self, replica: int) -> int:
        """As `samples_since`, for one replica number."""
        return self.samples_of(replica) - self.restored.get(replica, 0)

    def staleness_of(self, replica: int) -> float:
        """Mean staleness of one replica's pushes, in versions; NaN before its first."""
        own = self.replicas.get(replica)
        return own.staleness_sum / own.pushes if own is not None and own.pushes else math.nan

    def record_report(self, replica: int, new: ProgressReport, now_s: float) -> str | None:
        """Add newly acknowledged work; a reason to fail the job, if any."""
        self.samples += new.samples
        self.steps += new.steps
        self.pushes += new.pushes
        self.lost += new.lost
        self.steps_left_out += new.steps_left_out
        self.staleness_sum += new.staleness_sum
        self._new_staleness(new)
        own = self._stats(replica)
        own.samples += new.samples
        own.pushes += new.pushes
        own.steps += new.steps
        own.staleness_sum += new.staleness_sum
        if not new.steps or not new.samples:  # known from a ledger only, so without a loss
            return None
        return self.divergence.record(new.loss_sum / new.samples, new.samples, self.samples, now_s)

    def _stats(self, replica: int) -> ReplicaStats:
        """The statistics of a replica number, to be changed."""
        self.replicas.touch(replica)
        return self.replicas.setdefault(replica, ReplicaStats())

    def record_usage(self, replica: int, incarnation: int, usage: ResourceUsage) -> None:
        """Record an incarnation's resource usage, cumulative since its start."""
        own, key = self._stats(replica), str(incarnation)
        if usage.seconds:
            own.spent[key] = {phase: round(seconds, 4) for phase, seconds in usage.seconds.items()}
        if usage.staleness:
            own.stale[key] = list(usage.staleness)
        if usage.wire and all(map(math.isfinite, usage.wire.values())):
            own.wire[key] = dict(usage.wire)
        if usage.cache_reads:
            own.cache_reads[key], own.cache_hits[key] = dict(usage.cache_reads), dict(usage.cache_hits)

    def settle(self, incarnation: int) -> None:
        """See `ReplicaStats.settle`."""
        for replica, own in self.replicas.items():
            if own.settle(incarnation):
                self.replicas.touch(replica)

    def settle_all(self) -> None:
        """Merge the rows of all incarnations so far: see `ReplicaStats.settle`."""
        for replica, own in self.replicas.items():
            for incarnation in {*map(int, own.incarnations)} - {OVER}:
                own.settle(incarnation)
            self.replicas.touch(replica)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all replicas by phase."""
        return _added({str(number): own.seconds for number, own in self.replicas.items()})

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of segments that all replicas have "sent" and "received", in messages and through shared memory."""
        rows = [own.moved for own in self.replicas.values()]
        return {way: sum(row[way] for row in rows) for way in ("sent", "received")}

    @property
    def cached(self) -> dict[str, tuple[int, int]]:
        """By table, keys that replicas have looked for in their caches of rows, and keys whose rows were there."""
        replicas = self.replicas.items()
        reads = _added({str(number): _added(own.cache_reads) for number, own in replicas})
        hits = _added({str(number): _added(own.cache_hits) for number, own in replicas})
        return {name: (int(count), int(hits.get(name, 0))) for name, count in reads.items()}

    def residual(self, incarnations: Collection[int] | None = None) -> float:
        """Sum of the residual magnitudes in the codecs of these incarnations, as last reported; None: of all."""
        rows = [(key, row) for own in self.replicas.values() for key, row in own.wire.items()]
        return sum(row["residual"] for key, row in rows if incarnations is None or int(key) in incarnations)

    def stale(self) -> list[int]:
        """All pushes by staleness, as `StalenessHistogram` counts them; [] before the first."""
        rows = [counts for own in self.replicas.values() for counts in own.stale.values()]
        return [min(count, _MOST) for count in _columns(rows)]

    def _new_staleness(self, new: ProgressReport) -> None:
        if not new.steps:  # known from a ledger only, so without a staleness
            return
        mean = new.staleness_sum / new.pushes
        # An average over about the last 100 pushes, to show the current staleness and not that of the whole run.
        share = 1.0 if math.isnan(self.staleness) else min(1.0, new.pushes / 100)
        self.staleness = mean if share == 1.0 else self.staleness + (mean - self.staleness) * share

    def warm_start_ends(self) -> bool:
        """Whether the warm start has just ended; True once."""
        return self.warm_start.end_if_due(self.samples, self.loss)

    def evaluation_due(self) -> bool:
        """Whether an evaluation on validation data is due; true once per interval."""
        if self.evaluate_every is None or self.samples < self.next_evaluation:
            return False
        self._not_before(self.samples)
        return True

    def _not_before(self, samples: int) -> None:
        while self.evaluate_every is not None and self.next_evaluation <= samples:
            self.next_evaluation += self.evaluate_every

    def evaluated(self, new: Evaluated) -> tuple[str, str | None]:
        """Record an evaluation on validation data.

        Returns
        -------
        tuple
            The name to keep its parameters under ("" for none), and a reason to stop, if any.
        """
        self.last = new
        self._not_before(new.samples)  # requested earlier, it covers all samples trained since
        better = self._beats_best(new)
        self.without_gain = 0 if better else self.without_gain + 1
        # Two alternating names: until the new vector is complete, the old one stays valid.
        keep_as = ""
        if better and self.keep_best:
            keep_as = "best.1" if self.best is not None and self.best.vector == "best.0" else "best.0"
        if better and not self.keep_best:
            self.best = new.kept_as("")
        return keep_as, self._reason_to_stop(new)

    def record_best(self, best: Best) -> None:
        """Record the best evaluation, whose parameters are completely stored on the shards under its name."""
        if self._beats_best(best):
            self.best = best

    def _beats_best(self, new: Evaluated | Best) -> bool:
        if self.best is None:
            return True
        ours, theirs = self._rank(new), self._rank(self.best)
        if ours is None or theirs is None:
            return theirs is None and (ours is not None or new.loss < self.best.loss)
        return (ours, -new.loss) > (theirs, -self.best.loss)

    def _rank(self, one: Evaluated | Best) -> float | None:
        """What decides which evaluation is the best, higher is better; None where it is not known."""
        if self.best_by is None:
            return one.accuracy
        value = one.measured.get(self.best_by)
        return value if value is None or self.higher[self.best_by] else -value

    def _reason_to_stop(self, new: Evaluated) -> str | None:
        accuracy, loss = new.accuracy, new.loss
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return f"validation accuracy {accuracy:.4f} reached its target {self.target_accuracy:g}"
        if self.target_loss is not None and loss <= self.target_loss:
            return f"validation loss {loss:.4g} reached its target {self.target_loss:g}"
        for name, target in self.targets.items():
            value = new.measured.get(name)
            if value is not None and (value >= target if self.higher[name] else value <= target):
                return f"validation {name} {value:.4g} reached its target {target:g}"
        if self.patience is not None and self.without_gain >= self.patience:
            return f"no better validation result for {self.without_gain} evaluations"
        return None

    # -- snapshots ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The state that a snapshot set holds."""
        return {**self.figures(), "replicas": {str(number): own.state() for number, own in self.replicas.items()}}

    def figures(self) -> dict[str, Any]:
        """The state but for the rows of replicas, JSON-serialisable."""
        state: dict[str, Any] = {name: getattr(self, name) for name in _KEPT}
        state["warm"] = self.warm_start.active
        losses = self.divergence.loss, self.divergence.first_loss
        state["losses"] = [None if math.isnan(x) else x for x in losses]
        for name in ("best", "last", "test"):
            value = getattr(self, name)
            state[name] = dict(vars(value)) if value is not None else None
        return state

    def restore(self, state: dict[str, Any], corrections: Mapping[int, int]) -> None:
        """Restore a set's state; `corrections`: samples that the shards' ledgers hold beside it, by replica."""
        for name in _KEPT:
            setattr(self, name, state.get(name, 0))
        self.replicas = TrackedDict({int(number): ReplicaStats(**own) for number, own in state["replicas"].items()})
        self.warm_start.active = state.get("warm", False)
        losses = [math.nan if x is None else x for x in state["losses"]]
        self.divergence.loss, self.divergence.first_loss = losses
        self.best = Best(**state["best"]) if state["best"] else None
        self.last = Evaluated(**state["last"]) if state.get("last") else None
        self.test = Evaluated(**state["test"]) if state.get("test") else None
        for replica, samples in corrections.items():
            self.samples += samples
            self._stats(replica).samples += samples
        self.restored = {number: own.samples for number, own in self.replicas.items()}
