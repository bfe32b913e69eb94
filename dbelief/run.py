"""What people ask for: train a job file, evaluate a run, check a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dbelief.backend import choose
from dbelief.cluster import Cluster
from dbelief.console import announce
from dbelief.data import load
from dbelief.errors import DataError, Failure
from dbelief.evaluation import evaluate
from dbelief.job import Job, load_job
from dbelief.layout import cut, nominal_length, place
from dbelief.report.live import LiveView
from dbelief.report.summary import Summary, read_summary
from dbelief.session import build_model, initial_values


def run_job(job_file: Path, overrides: Mapping[str, str], resume: bool = False, quiet: bool = False) -> int:
    """Run a job on this machine with a live view; returns the exit code."""
    job = load_job(job_file, overrides)
    if quiet:
        return Cluster(job, job_file, overrides, resume, lambda status: None).run()
    console = Console(stderr=True)
    with LiveView(console) as view:
        cluster = Cluster(job, job_file, overrides, resume, view.update)
        code = cluster.run()
    announce(verdict(read_summary(cluster.folder / "summary.json"), cluster.folder))
    return code


def verdict(summary: Summary, folder: Path) -> str:
    """How a run ended, in one line."""
    parts = [summary.reason]
    if summary.test_accuracy is not None:
        parts.append(f"test accuracy {100 * summary.test_accuracy:.2f} %")
    elif summary.test_loss is not None:
        parts.append(f"test loss {summary.test_loss:.4g}")
    parts.append(f"{summary.wall_s:.1f} s")
    return f"{summary.job}: {', '.join(parts)}; see {folder}"


def train(job: Path | str, quiet: bool = True, **overrides: Any) -> Summary:
    """Run a job file on this machine, as `dbelief train` does.

    Parameters
    ----------
    job
        Path of the job file.
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
    fields = {name.replace("__", "."): str(value) for name, value in overrides.items()}
    code = run_job(Path(job), fields, quiet=quiet)
    loaded = load_job(Path(job), fields)
    summary = read_summary(Path(loaded.output).absolute() / loaded.name / "summary.json")
    if code:
        raise Failure(f"job {summary.job}: {summary.reason}")
    return summary


def evaluate_run(run: Path, split: str) -> dict[str, Any]:
    """Loss and accuracy of a run's model.safetensors on one split of its job's data.

    Raises
    ------
    DataError
        Where the run has no model, or the data no such split.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    job = load_job(run / "job.yaml", {})
    try:
        tensors = load_file(run / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise DataError(f"{run / 'model.safetensors'}: {error}") from error
    data = load(job.data, job.folder)
    samples = data.validation if split == "validation" else data.test
    if samples is None:
        raise DataError(f"job {job.name}: its data has no {split} set")
    backend = choose(job.device)
    model, _ = build_model(job, data, backend)
    layout, flat = initial_values(job, model)
    layout.flatten(tensors, flat)
    loss, accuracy = evaluate(model, layout.views(backend.to_device(flat)), samples, layout, backend)
    return {"set": split, "samples": len(samples), "loss": loss, "accuracy": accuracy}


def check_job(job_file: Path, overrides: Mapping[str, str]) -> list[str]:
    """Load a job with its data and model, compute one gradient, and say what would run."""
    job: Job = load_job(job_file, overrides)
    data = load(job.data, job.folder) if job.data.source != "none" else None
    model, _ = build_model(job, data, choose(job.device))
    layout, flat = initial_values(job, model)
    spans = cut(layout.rank_ranges(), nominal_length(layout.size, job.shards))
    counts = [count for _, count in place(spans, job.shards)]
    lines = [
        f"{job_file}: job {job.name} is fine",
        f"model: {layout.size:,} parameters in {len(layout.boxes)} tensors",
    ]
    lines.append(f"shards: {job.shards}, holding {', '.join(map(str, counts))} segments")
    if data is not None and data.train is not None:
        sizes = [len(split) if split is not None else 0 for split in (data.train, data.validation, data.test)]
        lines.append("data: {:,} training, {:,} validation, {:,} test samples".format(*sizes))
    lines.append(f"strategy: {job.strategy.name}, {job.replicas} replicas, mini-batches of {job.strategy.batch}")
    assert np.isfinite(flat).all(), "initial values are not finite"
    return lines
