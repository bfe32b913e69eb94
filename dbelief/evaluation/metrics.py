"""The metrics that a job names, as functions of all outputs and targets of a set of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from dbelief.core.sample_form import SampleForm
from dbelief.errors import JobError, ModelError
from dbelief.job import Job, OwnMetric
from dbelief.job.metrics import OF_CLASSES, OF_NUMBERS, TOP, name_of
from dbelief.nn.model import GivesOutputs
from dbelief.nn.python_file import load_object, raised

from . import class_metrics, number_metrics

Metric = Callable[[np.ndarray, np.ndarray], float]
"""Of outputs, (n, k) float32, and targets: labels, (n,) int64, or numbers, (n, k) float32."""


@dataclass(frozen=True)
class JobMetrics:
    """The metrics of a job.

    Attributes
    ----------
    functions
        By name.
    outputs
        Outputs of the model for a sample.
    """

    functions: Mapping[str, Metric]
    outputs: int

    def check(self, model: object) -> None:
        """Check that a model gives outputs.

        Raises
        ------
        ModelError
            It does not.
        """
        if not isinstance(model, GivesOutputs):
            raise ModelError("evaluate.metrics: the model has no method last_layer, so it gives no outputs to measure")

    def values(self, outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """The finite values; a metric that is not defined for these samples is left out."""
        found = {name: float(metric(outputs, targets)) for name, metric in self.functions.items()}
        return {name: value for name, value in found.items() if math.isfinite(value)}


def metrics_of(job: Job, samples: SampleForm) -> JobMetrics | None:
    """The metrics of a job with samples of this form; None where it lists none.

    Raises
    ------
    JobError
        A metric does not fit the targets.
    ModelError
        The file of a metric of the user's own cannot be run, or lacks the function.
    """
    if not job.evaluate.metrics:
        return None
    functions = {
        name_of(metric): _own(job, metric) if isinstance(metric, OwnMetric) else _named(metric, samples)
        for metric in job.evaluate.metrics
    }
    return JobMetrics(functions, samples.outputs)


def _named(name: str, samples: SampleForm) -> Metric:
    of_classes = name in OF_CLASSES or name.startswith(TOP)
    if of_classes != (samples.classes is not None):
        kind, fitting = ("numbers", list(OF_NUMBERS)) if of_classes else ("classes", [*OF_CLASSES, f"{TOP}5"])
        raise JobError(f"evaluate.metrics: targets are {kind}, so {name} has no meaning; there is {', '.join(fitting)}")
    if name.startswith(TOP):
        return partial(class_metrics.top, int(name.removeprefix(TOP)))
    metric: Metric = getattr(class_metrics if of_classes else number_metrics, name)
    return metric


def _own(job: Job, metric: OwnMetric) -> Metric:
    if metric.file is None or metric.object is None:
        raise JobError(f"evaluate.metrics: {metric.name} is returned by a script, and this job has none")
    path = job.path(metric.file)
    function, _ = load_object(path, metric.object)
    if not callable(function):
        raise ModelError(f"{path}: {metric.object!r} is no function, so no metric")

    def call(outputs: np.ndarray, targets: np.ndarray) -> float:
        try:
            return float(function(outputs, targets))
        except Exception as error:
            raise raised(path, f"{metric.object}(outputs, targets)", error) from error

    return call
