"""Check of a job before it runs: its data, model, layout and initial values, and a description of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dbelief.arrays.backend import Backend, select_backend
from dbelief.core.layout import Layout
from dbelief.data import Dataset, load
from dbelief.evaluation.evaluate import measure
from dbelief.evaluation.metrics import metrics_of
from dbelief.job import Diloco, Downpour, Job, PythonModel, Sandblaster, ScriptData, load_job
from dbelief.monitor.format import plural
from dbelief.nn import Model
from dbelief.optim.gradients import check_finite
from dbelief.plan.job_plan import idle_shards, placed
from dbelief.rundir.folder import check_start
from dbelief.rundir.resumed import check_resumed
from dbelief.telemetry.trackers import check_usable
from dbelief.training.model_check import ModelCheck
from dbelief.training.session import build_model, initial_values, layout_over_ranks, load_initial_from_run

LISTED_CLASSES = 10
"""Classes whose sizes are listed one by one."""

FEW = 32
"""Training samples that metrics are tried with."""

SAMPLES_READ = 10_000
"""Training samples whose inputs are compared in size."""

UNEVEN = 1_000
"""Factor between the largest values of two inputs from which on a note is printed."""


EXACT = 1 << 24
"""Whole numbers up to here are float32."""

LISTED_INPUTS = 5
"""Inputs that a note lists one by one."""


def assemble_job(
    job: Job, backend: Backend, resume: bool = False
) -> tuple[Dataset | None, Model, Layout, np.ndarray, str]:
    """The data, model, layout and initial values of a job, and a description of the run they are from, or "".

    Raises
    ------
    UserError
        One of them is invalid; the message names the error.
    NonFinite
        An initial value is NaN or infinite.
    """
    if not resume:
        check_start(job)
    data = load(job.data, job.folder) if job.data.source != "none" else None
    model, _ = build_model(job, data, backend)
    layout, flat = initial_values(job, model)
    over_ranks = layout_over_ranks(job, model, layout)
    if resume:
        check_resumed(job, over_ranks, data.form if data is not None else None)
    taken = "" if resume else load_initial_from_run(job, layout, flat)
    check_finite(flat, layout, "initial value")
    return data, model, layout, flat, taken


def _data_lines(data: Dataset) -> list[str]:
    """Sizes of the sets, classes with their training samples, and notes on how inputs were read, and on their size."""
    lines = []
    if data.train is not None:
        sizes = [len(split) if split is not None else 0 for split in (data.train, data.validation, data.test)]
        lines.append("data: {:,} training, {:,} validation, {:,} test samples".format(*sizes))
    if data.names is not None:
        lines.append(f"classes: {', '.join(f'{place} is {name!r}' for place, name in enumerate(data.names))}")
    if data.train is not None and data.classes is not None:
        counts = data.train.class_counts(data.classes)
        listed = ", ".join(f"{count:,}" for count in counts)
        lines.append(
            f"training samples per class: {listed if len(counts) <= LISTED_CLASSES else _range_of_counts(counts)}"
        )
    if data.train is not None and len(data.features) == 1 and data.features[0]:  # samples may be bags of keys
        largest = data.train.largest(SAMPLES_READ)
        lines += _uneven_inputs(largest, data.columns)
        lines += [] if data.train.whole else _rounded_inputs(largest / data.train.scale, data.columns)
    return lines + [f"note: {note}" for note in data.notes]


def _range_of_counts(counts: np.ndarray) -> str:
    least, most = int(counts.argmin()), int(counts.argmax())
    return f"{counts[least]:,} (class {least}) to {counts[most]:,} (class {most})"


def _uneven_inputs(largest: np.ndarray, names: Sequence[str] | None) -> list[str]:
    """A note where the largest values of two inputs differ by a factor of 1,000 or more.

    Inputs that are always 0 do not count.
    """
    great, small = int(largest.argmax()), int(np.where(largest > 0, largest, np.inf).argmin())
    if not largest[great] or largest[great] < UNEVEN * largest[small]:  # all are 0, as constants that are standardised
        return []
    big, little = (repr(names[place]) if names else f"input {place + 1}" for place in (great, small))
    sizes = f"{big} reaches {largest[great]:.3g}, {little} only {largest[small]:.3g}"
    counted = "" if names else " (counted from 1, without target and ignored columns)"
    return [f"note: {sizes}{counted}; inputs of similar size train faster and diverge less"]


def _rounded_inputs(largest: np.ndarray, names: Sequence[str] | None) -> list[str]:
    """A note where inputs are so large that float32 has not every whole number."""
    places = np.flatnonzero(largest > EXACT)
    if not len(places):
        return []
    listed = [repr(names[place]) if names else f"input {place + 1}" for place in places[:LISTED_INPUTS].tolist()]
    more = f" and {len(places) - LISTED_INPUTS:,} more" if len(places) > LISTED_INPUTS else ""
    return [
        f"note: {', '.join(listed)}{more}, up to {largest.max():.3g}: whole numbers above 2^24 = {EXACT:,} lose digits "
        "as float32; data.standardize keeps them until they are scaled, or list the column in data.hashed or ignore"
    ]


def _warm_start(strategy: Downpour) -> list[str]:
    """A line on the samples that one replica trains alone."""
    warm = strategy.warm_start
    if warm is None or strategy.staleness == 0:
        return []
    ends = [f"{warm.samples:,} samples"] if warm.samples is not None else []
    ends += [f"a mean loss of {warm.loss:g}"] if warm.loss is not None else []
    until = " or ".join(ends) or f"{100 * warm.share:.3g} % of all samples"
    return [f"warm start: one replica trains alone until {until} (strategy.warm_start)"]


def _strategy_lines(job: Job) -> list[str]:
    strategy = job.strategy
    what = "portions" if isinstance(strategy, Sandblaster) else "mini-batches"
    rounds = f", {strategy.steps} in a round" if isinstance(strategy, Diloco) else ""
    lines = [f"strategy: {strategy.name}, {plural(job.replicas, 'replica')}, {what} of {job.samples_at_once}{rounds}"]
    return lines + (_warm_start(strategy) if isinstance(strategy, Downpour) and job.replicas > 1 else [])


def check_job(job_file: Path, overrides: Mapping[str, str]) -> list[str]:
    """Load a job with its data and model, compute one gradient, and return a description of the run, as lines."""
    job = load_job(job_file, overrides)
    for tracker in job.track:
        check_usable(tracker)
    if isinstance(job.data, ScriptData):
        check_start(job)
        return [
            f"{job_file}: job {job.name} is fine",
            f"model and data: the script's, {job.data.train:,} training and {job.data.validation:,} validation samples",
            *_strategy_lines(job),
        ]
    backend = select_backend(job.computes_on)
    data, model, layout, flat, taken = assemble_job(job, backend)
    odd = ""
    if data is not None and data.train is not None:
        train = data.train if math.prod(job.grid) == 1 else data.train.dense()  # as ranks read it
        trial = ModelCheck(model, layout, flat, train, job.samples_at_once, backend)
        trial.check_gradient()
        assert data.form is not None
        if (metrics := metrics_of(job, data.form)) is not None:
            measure(metrics, model, layout.views(backend.to_device(flat)), data.train.head(FEW), backend)
        odd = trial.check_mean() if isinstance(job.model, PythonModel) else ""
    ranges = layout_over_ranks(job, model, layout).rank_ranges()
    placement = placed(layout_over_ranks(job, model, layout), job.shards)
    lines = [
        f"{job_file}: job {job.name} is fine",
        f"model: {layout.size:,} parameters in {len(layout.boxes)} tensors",
    ]
    if len(ranges) > 1:
        least, most = (one(b - a for a, b in ranges) for one in (min, max))
        lines.append(f"ranks: {math.prod(job.grid)} a replica, holding {least:,} to {most:,} parameters each")
    held = ", ".join(str(place.count) for place in placement.places)
    lines.append(f"shards: {job.shards}, number of segments: {held}")
    lines += [f"note: {note}" for note in idle_shards(placement) if not job.tables]
    lines += _data_lines(data) if data is not None else []
    lines += _strategy_lines(job)
    if taken:
        lines.append(f"starts from: {taken}")
    return [*lines, odd] if odd else lines
