"""Commands about one run: its status, its live view, its report, its evaluation, its model's predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dbelief.data import load
from dbelief.data.new_samples import read_samples
from dbelief.errors import DataError
from dbelief.evaluation.evaluate import evaluate, evaluate_groups, measure
from dbelief.evaluation.metrics import metrics_of
from dbelief.monitor.live_view import LiveView
from dbelief.monitor.status import JobLocation, get_status, watch
from dbelief.monitor.status_table import outcome, overview
from dbelief.monitor.top import whole
from dbelief.process.terminal.console import interrupt_event
from dbelief.rundir.json_values import plain
from dbelief.rundir.summary import Summary
from dbelief.tools.report.text_report import account
from dbelief.training.trained_model import load_model
from dbelief.url import Url


def print_status(where: str, as_json: bool) -> None:
    """Print the status of a job, or the outcome of a finished run."""
    found = get_status(JobLocation.of(where))
    if as_json:
        print(json.dumps(plain(found.model_dump() if isinstance(found, Summary) else found)))
    else:
        Console().print(outcome(found) if isinstance(found, Summary) else overview(found))


def show_top(where: str) -> int:
    """Show a job's status until it ends or Ctrl-C is pressed; return the exit code: 1 where it failed."""
    with interrupt_event() as interrupted, LiveView(Console(stderr=True), draw=whole) as view:
        found = watch(JobLocation.of(where), view.update, interrupted)
    if isinstance(found, Summary):
        Console().print(outcome(found))
        return 1 if found.model_dump().get("state") == "failed" else 0
    return 1 if found["state"] == "failed" else 0


def report_run(run: Path, output: Path, images: Path | None = None) -> None:
    """Print the report of a run, finished or in progress, and draw its plots into a folder.

    Parameters
    ----------
    images
        An .npz file of labelled images, for the selectivity of an autoencoder's neurons. Other models have none.

    Raises
    ------
    UserError
        `run` is not a run folder, or nothing was recorded there.
    """
    from dbelief.tools.report.pictures import import_matplotlib

    import_matplotlib()
    from dbelief.tools.report.neurons import report_neurons
    from dbelief.tools.report.pictures import draw_pictures
    from dbelief.tools.report.reduction import read_reduction

    job, facts = account(run)
    Console().print(facts)
    if (reduction := read_reduction(run)) is not None:
        Console().print(reduction.table())
    pictures = draw_pictures(run, output, job)
    pictures += report_neurons(run, output, job, images)
    for picture in pictures:
        print(picture)


def evaluate_run(run: Path, split: str) -> dict[str, Any]:
    """Loss, accuracy and metrics of a run's model on one split of the job's data, and by group where it has any.

    Raises
    ------
    DataError
        Where the run has no model, or the data no such split.
    ModelError
        Where the model is not the one that the job describes.
    """
    trained = load_model(run)
    data = load(trained.job.data, trained.job.folder, [split])
    form = data.form and replace(data.form, objects=trained.samples.objects)  # training objects may be written again
    if form is not None and (what := form.difference(trained.samples)):
        raise DataError(f"{run}: the model was trained on data of another kind; now {what}")
    samples = data.validation if split == "validation" else data.test
    if samples is None:
        raise DataError(f"job {trained.job.name}: its data has no {split} set")
    quality = evaluate(trained.model, trained.views, samples, trained.layout, trained.backend)
    result = {"set": split, "samples": len(samples), "loss": quality.loss, "accuracy": quality.accuracy}
    if (metrics := metrics_of(trained.job, trained.samples)) is not None:
        result["metrics"] = measure(metrics, trained.model, trained.views, samples, trained.backend)
    if (of_groups := evaluate_groups(trained.model, trained.views, samples, trained.backend)) is not None:
        result["groups"], result["group_accuracy"] = of_groups
    return result


def predict(model: Path, file: Path | Url, with_outputs: bool) -> Iterator[list[str]]:
    """Rows of text: the class of each sample in a file, and the outputs of the last layer; these only without classes.

    Parameters
    ----------
    model
        A run folder or a model file.
    with_outputs
        Whether outputs follow the class, under a first row with the names of the classes.

    Raises
    ------
    DataError, ModelError
        See `load_model`, `read_samples` and `TrainedModel.outputs`.
    """
    trained = load_model(model)
    form = trained.samples
    found = trained.outputs(read_samples(file, trained.job.data, form), encoded=True)
    numbers = ([f"{value:.7g}" for value in row] for row in found)
    if form.classes is None:
        yield from numbers
        return
    names = form.names or tuple(map(str, range(form.classes)))
    chosen = (names[place] for place in found.argmax(axis=1))
    if with_outputs:
        yield ["class", *names]
        yield from ([name, *row] for name, row in zip(chosen, numbers, strict=True))
    else:
        yield from ([name] for name in chosen)
