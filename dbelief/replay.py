"""A recorded run once more, in one thread and to the last bit.

What replicas that do not wait for each other make of a job is decided by two things that no seed fixes: the order
in which each segment applied the pushes, and the versions that each gradient was computed from. Both are logged,
the first by the shards, the second by the replicas. For segment s, with v counting the rows of its log:

    w_s(v + 1) = rule(w_s(v), the gradient that row v names)

and a gradient can be computed as soon as every w_s(v) that it was computed from exists. The log of a real run always
leaves such a gradient; a log that does not is not whole, and is refused. Segments have no order among each other, nor
need of one.

Cost: one gradient per push and one rule per push and segment. Values are kept by version until the last gradient
that needs them is computed, a gradient until the last segment has applied it: about one vector per replica.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dbelief.backend import Backend, aligned, choose
from dbelief.clip import clip
from dbelief.data import BatchBuffer, Split, load, permutation
from dbelief.errors import Failure, JobError
from dbelief.job import Asynchronous, Downpour, Job, load_job
from dbelief.layout import Layout, Span, cut, nominal_length
from dbelief.nn import Batch, Model
from dbelief.optim import Rule, make_rule
from dbelief.pushes import Pusher
from dbelief.recorded import Applied, Computed, read_record
from dbelief.session import begin_from, build_model, initial_values

PushId = tuple[Pusher, int]
"""A pusher, and the number of its push."""

GradientOf = Callable[[np.ndarray, Computed], np.ndarray]
"""From (N,) float32 parameters and a row to the (N,) float32 gradient that was pushed. Neither array is kept."""


def replay(
    initial: np.ndarray,
    spans: Sequence[Span],
    rule: Rule,
    applied_rows: Iterable[Applied],
    computed_rows: Iterable[Computed],
    gradient_of: GradientOf,
) -> np.ndarray:
    """Apply the logged pushes in their logged order, each gradient computed from the versions logged for it.

    Parameters
    ----------
    initial
        (N,) float32, version 0 of every segment; left as it is.
    spans
        The segment table, by rising index; it covers the N numbers in order.
    applied_rows
        In the order of application per segment; those of different segments may be mixed in any way.
    computed_rows
        In any order.

    Returns
    -------
    (N,) float32
        The parameters after the last logged push: where n_fetch = n_push = 1, the bits of the run itself.

    Raises
    ------
    Failure
        Where the logs are not whole; names the push, or the version, that is missing.
    """
    applied, recipes = list(applied_rows), {(row.pusher, row.sequence): row for row in computed_rows}
    _check_whole(applied, recipes, len(spans))
    segments = [_Segment.begin(span, initial, rule) for span in spans]
    for row in applied:
        segments[row.segment].rows.append(row)
    for push in {(row.pusher, row.sequence) for row in applied}:
        for segment, version in zip(segments, recipes[push].versions, strict=True):
            segment.needed[version] += 1
    run = _Run(segments, rule, recipes, Counter((row.pusher, row.sequence) for row in applied), gradient_of)
    run.to_the_end(len(initial))
    return np.concatenate([segment.values for segment in segments])


def _check_whole(applied: Sequence[Applied], recipes: dict[PushId, Computed], count: int) -> None:
    """Raise Failure where a row is missing that others speak of."""
    seen: list[dict[Pusher, int]] = [{} for _ in range(count)]
    for row in applied:
        if not 0 <= row.segment < count:
            raise Failure(f"the log names segment {row.segment}, the job has {count}")
        last = seen[row.segment].get(row.pusher, row.sequence - 1)
        if row.sequence != last + 1:
            raise Failure(f"segment {row.segment}: {_said(row)} follows its push {last} in the log")
        seen[row.segment][row.pusher] = row.sequence
        recipe = recipes.get((row.pusher, row.sequence))
        if recipe is None:
            raise Failure(f"segment {row.segment} applied {_said(row)}, and no replica's log holds it")
        if len(recipe.versions) != count:
            raise Failure(f"{_said(row)} was computed from {len(recipe.versions)} segments, the job has {count}")
    held = {(row.segment, row.pusher, row.sequence) for row in applied}
    for recipe in recipes.values():
        for index in range(count) if recipe.acknowledged else ():
            if (index, recipe.pusher, recipe.sequence) not in held:
                raise Failure(f"segment {index}: {_said(recipe)} was acknowledged, and the shard's log lacks it")


def _said(row: Applied | Computed) -> str:
    return f"push {row.sequence} of replica {row.pusher.replica} in life {row.pusher.incarnation}"


@dataclass
class _Segment:
    """A segment on its way through the log.

    `rows` are still to be applied. `needed` counts, by version, the gradients still to be computed from it; `kept`
    holds those values.
    """

    span: Span
    values: np.ndarray
    state: tuple[np.ndarray, ...]
    version: int = 0
    rows: deque[Applied] = field(default_factory=deque)
    needed: Counter[int] = field(default_factory=Counter)
    kept: dict[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def begin(cls, span: Span, initial: np.ndarray, rule: Rule) -> _Segment:
        """Version 0."""
        states = tuple(np.full(span.length, rule.initial(name), np.float32) for name in rule.state)
        return cls(span, initial[span.start : span.stop].copy(), states)

    def keep(self) -> None:
        """Keep the present version, if a gradient needs it."""
        if self.needed[self.version]:
            self.kept[self.version] = self.values.copy()

    def release(self, version: int) -> None:
        """One gradient less needs a version."""
        self.needed[version] -= 1
        if not self.needed[version]:
            del self.kept[version]

    def apply(self, rule: Rule, gradient: np.ndarray) -> None:
        """Apply the next row."""
        part, rate = gradient[self.span.start : self.span.stop], np.float32(self.rows.popleft().rate)
        rule.apply(self.values, part, self.state, rate, self.version + 1)
        self.version += 1
        self.keep()


@dataclass
class _Run:
    """All segments, the rows by push, how many segments still have to apply it, and the gradients at hand."""

    segments: list[_Segment]
    rule: Rule
    recipes: dict[PushId, Computed]
    waiting: Counter[PushId]
    gradient_of: GradientOf
    gradients: dict[PushId, np.ndarray] = field(default_factory=dict)

    def to_the_end(self, size: int) -> None:
        """Apply every row."""
        values = aligned(size, np.float32)  # as a replica's own copy is: BLAS may look at the address
        for segment in self.segments:
            segment.keep()
        while any(segment.rows for segment in self.segments):
            applied = [self._advance(segment, values) for segment in self.segments]
            if not any(applied):
                raise Failure(self._trouble())

    def _advance(self, segment: _Segment, values: np.ndarray) -> bool:
        """Apply a segment's rows as far as their gradients can be computed; whether there was any."""
        began = segment.version
        while segment.rows:
            push = segment.rows[0].pusher, segment.rows[0].sequence
            if push not in self.gradients and not self._compute(push, values):
                break
            segment.apply(self.rule, self.gradients[push])
            self.waiting[push] -= 1
            if not self.waiting[push]:
                del self.gradients[push]
        return segment.version > began

    def _compute(self, push: PushId, values: np.ndarray) -> bool:
        """Compute the gradient of a push, if the versions it was computed from exist."""
        row = self.recipes[push]
        pairs = list(zip(self.segments, row.versions, strict=True))
        if any(version not in segment.kept for segment, version in pairs):
            return False
        for segment, version in pairs:
            values[segment.span.start : segment.span.stop] = segment.kept[version]
            segment.release(version)
        self.gradients[push] = np.array(self.gradient_of(values, row), np.float32)
        return True

    def _trouble(self) -> str:
        """Why nothing can be applied any more."""
        heads = [segment.rows[0] for segment in self.segments if segment.rows]
        later = ""
        for row in (self.recipes[head.pusher, head.sequence] for head in heads):
            for segment, version in zip(self.segments, row.versions, strict=True):
                logged = segment.version + len(segment.rows)
                what = f"{_said(row)} was computed from version {version} of segment {segment.span.index}"
                if version > logged:
                    return f"{what}, and the shard's log ends at version {logged}"
                if version not in segment.kept:
                    later = later or f"{what}, which by the shards' logs came after it"
        return later


# -- a run's folder ----------------------------------------------------------------------------------------------


def replay_run(run_folder: Path) -> np.ndarray:
    """Replay `runs/NAME` from its record, its job file, the job's data and the run that it started from, if any.

    Returns
    -------
    (N,) float32
        The run's last parameters, in the order of `initial_values`'s layout. They are what model.safetensors holds,
        unless the job kept the best evaluation's. The same bits need the same kind of machine and the same BLAS as
        the run had.

    Raises
    ------
    JobError
        Where the job logged nothing, or nothing that decides its result.
    DataError, ModelError
        Where a log cannot be read, or data, model or that run are not there.
    Failure
        Where the logs are not whole: a program was killed, or the run was resumed.
    """
    job = load_job(run_folder / "job.yaml")
    _check_job(job, run_folder)
    data, backend = load(job.data, job.folder, ("train",)), choose(job.device)
    assert data.train is not None, "a data source without a training set"
    model, _ = build_model(job, data, backend)
    layout, initial = initial_values(job, model)
    begin_from(job, layout, initial)
    spans = cut(layout.rank_ranges(), nominal_length(layout.size, job.shards))
    options = job.strategy.rule.model_dump(exclude={"name", "rate"})
    strategy = job.strategy
    assert isinstance(strategy, Downpour | Asynchronous), "no other strategy can be recorded"
    applied, computed = read_record(run_folder / "record", strategy.batch)
    gradient_of = _gradient_of(job, strategy, data.train, model, layout, backend)
    rule = make_rule(job.strategy.rule.name, options)
    with threadpool_limits(job.threads):  # as replicas compute: BLAS may sum otherwise on more threads
        return replay(initial, spans, rule, applied, computed, gradient_of)


def _check_job(job: Job, run_folder: Path) -> None:
    strategy = job.strategy
    if not isinstance(strategy, Downpour | Asynchronous):
        raise JobError(f"{run_folder}: cannot be replayed: strategy is {strategy.name}, whose pushes have no order")
    reasons = {
        "record is false: nothing was logged": not job.record,
        "data.source is none: gradients came from a program of its own": job.data.source == "none",
        f"n_fetch is {strategy.n_fetch}: local steps are not logged": strategy.n_fetch > 1,
        f"n_push is {strategy.n_push}: sums of gradients are not logged": strategy.n_push > 1,
        "staleness is 0: rounds are not logged, and need not be, for no timing decides them": strategy.staleness == 0,
    }
    for reason, holds in reasons.items():
        if holds:
            raise JobError(f"{run_folder}: cannot be replayed: {reason}")


def _gradient_of(
    job: Job, strategy: Downpour | Asynchronous, train: Split, model: Model, layout: Layout, backend: Backend
) -> GradientOf:
    """The gradient as a replica of the job computes it."""
    buffer = BatchBuffer(train, strategy.batch)
    out = backend.to_device(aligned(layout.size, np.float32))
    out_views = layout.views(out)

    @functools.lru_cache(maxsize=4)
    def order(epoch: int) -> np.ndarray:
        return permutation(len(train), job.seed, epoch)

    def gradient(values: np.ndarray, row: Computed) -> np.ndarray:
        batch = train.gather(order(row.epoch)[row.start : row.stop], buffer)
        batch = Batch(backend.to_device(batch.inputs), backend.to_device(batch.targets))
        model.loss_and_gradient(layout.views(backend.to_device(values)), batch, out_views)
        clip(backend.xp, out, strategy.clip_norm)
        return backend.to_host(out)

    return gradient
