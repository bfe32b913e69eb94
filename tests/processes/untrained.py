"""What a model is worth before it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dbelief.arrays.backend import select_backend
from dbelief.data import load
from dbelief.evaluation.evaluate import evaluate
from dbelief.job import load_job
from dbelief.training.session import build_model, initial_values


def first_loss(job_file: Path, overrides: Mapping[str, str] = {}) -> float:
    """Mean loss on the test set of what a job begins with."""
    job, backend = load_job(job_file, overrides), select_backend("cpu")
    data = load(job.data, job.folder)
    model, _ = build_model(job, data, backend)
    layout, initial = initial_values(job, model)
    assert data.test is not None
    return evaluate(model, layout.views(initial), data.test, layout, backend).loss
