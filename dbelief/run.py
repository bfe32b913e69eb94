"""What people ask for: train a job file, evaluate a run, check a job."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dbelief.backend import Backend, choose
from dbelief.cluster import Cluster
from dbelief.console import announce, on_signals
from dbelief.data import Dataset, load
from dbelief.errors import DataError, Failure
from dbelief.evaluation import evaluate, evaluate_groups
from dbelief.finite import check_finite
from dbelief.job import Job, PythonModel, Sandblaster, load_job
from dbelief.layout import Layout
from dbelief.nn import Model
from dbelief.plan.plan import idle_shards, placed
from dbelief.report.account import account
from dbelief.report.folder import check_resumed, check_start
from dbelief.report.live import LiveView
from dbelief.report.plain import plain
from dbelief.report.summary import Summary, read_summary
from dbelief.report.table import outcome, overview, taken
from dbelief.report.top import whole
from dbelief.result import read_model
from dbelief.session import begin_from, build_model, initial_values, layout_over_ranks
from dbelief.site import Site
from dbelief.status import Place, look, watch
from dbelief.trial import Trial


def run_job(
    job_file: Path,
    overrides: Mapping[str, str],
    resume: bool = False,
    quiet: bool = False,
    page: str | None = None,
    shared_memory: bool = True,
    site: Site | None = None,
) -> int:
    """Run a job with a live view, and at `page` (`host:port`) one for browsers; the exit code.

    It runs at `site`; None: on this machine.
    """
    code, folder = _run_cluster(job_file, overrides, resume, quiet, page, shared_memory, site)
    if code or not quiet:
        announce(verdict(read_summary(folder / "summary.json"), folder))
    return code


def _run_cluster(
    job_file: Path,
    overrides: Mapping[str, str],
    resume: bool,
    quiet: bool,
    page: str | None = None,
    shared_memory: bool = True,
    site: Site | None = None,
) -> tuple[int, Path]:
    """Exit code and run folder."""
    job = load_job(job_file, overrides)
    _made_of(job, choose("cpu"), resume)  # before a folder is made, an earlier run moved aside, or a process started
    with ExitStack() as stack:
        view = None if quiet else stack.enter_context(LiveView(Console(stderr=True)))
        show = view.update if view else lambda status: None
        cluster = Cluster(job, job_file, overrides, resume, show, page=page, shared_memory=shared_memory, site=site)
        return cluster.run(), cluster.folder


def tell_status(where: str, as_json: bool) -> None:
    """Print how a job goes, or ended."""
    found = look(Place.of(where))
    if as_json:
        print(json.dumps(plain(found.model_dump() if isinstance(found, Summary) else found)))
    else:
        Console().print(outcome(found) if isinstance(found, Summary) else overview(found))


def show_top(where: str) -> int:
    """Show how a job goes until it ends, or somebody presses Ctrl-C; the exit code: 1 where it failed."""
    with on_signals() as interrupted, LiveView(Console(stderr=True), draw=whole) as view:
        found = watch(Place.of(where), view.update, interrupted)
    if isinstance(found, Summary):
        Console().print(outcome(found))
        return 1 if found.model_dump().get("state") == "failed" else 0
    return 1 if found["state"] == "failed" else 0


def report_run(run: Path, output: Path, images: Path | None = None) -> None:
    """Print how a run went, or goes so far, and draw its pictures into a folder.

    Parameters
    ----------
    images
        An .npz file of labelled images: of autoencoders, what their neurons tell apart. Other models have none.

    Raises
    ------
    Mistake
        `run` is no run folder, or nothing has happened there.
    """
    from dbelief.neurons import tell_neurons
    from dbelief.report.pictures import draw_pictures, read_reduction

    job, facts = account(run)
    Console().print(facts)
    if (reduction := read_reduction(run)) is not None:
        Console().print(reduction.table())
    pictures = draw_pictures(run, output, job)
    pictures += tell_neurons(run, output, job, images)
    for picture in pictures:
        print(picture)


def verdict(summary: Summary, folder: Path) -> str:
    """How a run ended, in one line."""
    parts = [summary.reason]
    if summary.test_accuracy is not None:
        parts.append(f"test accuracy {100 * summary.test_accuracy:.2f} %")
    elif summary.test_loss is not None:
        parts.append(f"test loss {summary.test_loss:.4g}")
    parts.append(taken(summary))
    if summary.died:
        lost = f"{summary.pushes_lost} pushes lost, {summary.pushes_trained_twice} trained twice"
        parts.append(f"died on the way: {', '.join(summary.died)} ({lost})")
    return f"{summary.job}: {', '.join(parts)}; see {folder}"


def train(job: Path | str, quiet: bool = True, **overrides: Any) -> Summary:
    """Run a job file on this machine, as `dbelief train` does.

    Parameters
    ----------
    job
        Path of the job file.
    quiet
        Show nothing while it runs.
    overrides
        Fields to replace, dots written as double underscores: `strategy__batch=64`.

    Returns
    -------
    Summary
        What `runs/NAME/summary.json` holds.

    Raises
    ------
    Mistake
        What is wrong with the job.
    Failure
        Why it did not end as planned.
    """
    fields = {name.replace("__", "."): _as_yaml(value) for name, value in overrides.items()}
    code, folder = _run_cluster(Path(job), fields, resume=False, quiet=quiet)
    summary = read_summary(folder / "summary.json")
    if code:
        raise Failure(f"job {summary.job}: {summary.reason}")
    return summary


def _as_yaml(value: Any) -> str:
    """A field's new value as text: None is null, a mapping a mapping."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def evaluate_run(run: Path, split: str) -> dict[str, Any]:
    """Loss and accuracy of a run's model.safetensors on one split of its job's data, of whole groups where it has any.

    Raises
    ------
    DataError
        Where the run has no model, or the data no such split.
    ModelError
        Where the model is not the one that the job describes.
    """
    job = load_job(run / "job.yaml", {})
    data = load(job.data, job.folder)
    samples = data.validation if split == "validation" else data.test
    if samples is None:
        raise DataError(f"job {job.name}: its data has no {split} set")
    backend = choose(job.device)
    model, _ = build_model(job, data, backend)
    layout, flat = initial_values(job, model)
    read_model(run / "model.safetensors", layout, flat, run)
    views = layout.views(backend.to_device(flat))
    loss, accuracy = evaluate(model, views, samples, layout, backend)
    told = {"set": split, "samples": len(samples), "loss": loss, "accuracy": accuracy}
    if (of_groups := evaluate_groups(model, views, samples, backend)) is not None:
        told["groups"], told["group_accuracy"] = of_groups
    return told


def _made_of(job: Job, backend: Backend, resume: bool = False) -> tuple[Dataset | None, Model, Layout, np.ndarray, str]:
    """The data, the model, its layout, what training begins with, and the run that this is from, in words or "".

    Raises
    ------
    Mistake
        What is wrong with one of them.
    NotFinite
        An initial value is NaN or infinite.
    """
    if not resume:
        check_start(job)
    data = load(job.data, job.folder) if job.data.source != "none" else None
    model, _ = build_model(job, data, backend)
    layout, flat = initial_values(job, model)
    over_ranks = layout_over_ranks(job, model, layout)
    if resume:
        check_resumed(job, over_ranks)
    taken = "" if resume else begin_from(job, layout, flat)
    check_finite(flat, layout, "initial value")
    return data, model, layout, flat, taken


def check_job(job_file: Path, overrides: Mapping[str, str]) -> list[str]:
    """Load a job with its data and model, compute one gradient, and say what would run."""
    job = load_job(job_file, overrides)
    backend = choose(job.device)
    data, model, layout, flat, taken = _made_of(job, backend)
    odd = ""
    if data is not None and data.train is not None:
        trial = Trial(model, layout, flat, data.train, job.samples_at_once, backend)
        trial.check_gradient()
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
    lines.append(f"shards: {job.shards}, holding {', '.join(str(place.count) for place in placement.places)} segments")
    lines += [f"note: {note}" for note in idle_shards(placement)]
    if data is not None and data.train is not None:
        sizes = [len(split) if split is not None else 0 for split in (data.train, data.validation, data.test)]
        lines.append("data: {:,} training, {:,} validation, {:,} test samples".format(*sizes))
    if data is not None and data.names is not None:
        lines.append(f"classes: {', '.join(f'{place} is {name!r}' for place, name in enumerate(data.names))}")
    strategy = job.strategy
    what = "portions" if isinstance(strategy, Sandblaster) else "mini-batches"
    lines.append(f"strategy: {strategy.name}, {job.replicas} replicas, {what} of {job.samples_at_once}")
    if taken:
        lines.append(f"starts from: {taken}")
    return [*lines, odd] if odd else lines
