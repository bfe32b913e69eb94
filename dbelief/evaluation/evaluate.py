"""Loss, accuracy and metrics of one set of parameters over a complete split, by sample or by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dbelief.arrays.backend import Backend, aligned
from dbelief.core.layout import Layout, RankPart
from dbelief.data import Samples
from dbelief.errors import ModelError
from dbelief.nn import Batch, Evaluates, HasLogProbabilities, Model
from dbelief.nn.model import GivesOutputs

from .metrics import JobMetrics

BATCH = 1_000
"""Samples per forward pass: large enough for efficient BLAS, small relative to the data."""


class Quality(NamedTuple):
    """Quality of a set of parameters.

    Attributes
    ----------
    loss
        Mean over the samples.
    accuracy
        Share of correct answers, 0 to 1; None where the model has none.
    metrics
        Values by name; without those that are not defined for the samples.
    """

    loss: float
    accuracy: float | None
    metrics: Mapping[str, float]


def evaluate(
    model: Model,
    views: Mapping[str, Any],
    split: Samples,
    layout: Layout | RankPart,
    backend: Backend,
    moved: Callable[[], None] = lambda: None,
) -> Quality:
    """Mean loss, and the share of correct answers where the model reports it.

    A model without `evaluate` computes only its loss; its gradient goes into a scratch vector. `moved` is called after
    each batch.
    """
    scratch: dict[str, Any] | None = None
    loss_sum, right, evaluates = 0.0, 0, isinstance(model, Evaluates)
    for batch in batches(model, split, backend):
        if isinstance(model, Evaluates):
            loss, hits = model.evaluate(views, batch)
            loss_sum += loss
            if hits is None:
                evaluates = False
            else:
                right += hits
        else:
            if scratch is None:
                scratch = layout.views(backend.to_device(aligned(layout.size, np.float32)))
            loss_sum += model.loss_and_gradient(views, batch, scratch) * len(batch)
        moved()
    return Quality(loss_sum / len(split), right / len(split) if evaluates else None, {})


def measure(
    metrics: JobMetrics, model: Model, views: Mapping[str, Any], split: Samples, backend: Backend
) -> Mapping[str, float]:
    """The metrics of all samples of a split, by name; one that is not defined for them is left out.

    Cost: a forward pass, and 4 bytes for each sample and output; some metrics take three float64 arrays of that shape.

    Raises
    ------
    ModelError
        The model gives no outputs, or outputs of another shape than the targets'; or a metric of the user's own fails.
    """
    metrics.check(model)
    assert isinstance(model, GivesOutputs)
    outputs, targets, first = np.empty((len(split), metrics.outputs), np.float32), list[np.ndarray](), 0
    for batch in batches(model, split, backend):
        found = np.asarray(backend.to_host(model.last_layer(views, batch)))
        if found.shape != (len(batch), metrics.outputs):
            raise ModelError(
                f"evaluate.metrics: last_layer gives an array of shape {found.shape}, expected "
                f"({len(batch)}, {metrics.outputs})"
            )
        outputs[first : first + len(batch)] = found
        targets.append(np.array(backend.to_host(batch.targets)))
        first += len(batch)
    return metrics.values(outputs, np.concatenate(targets))


def evaluate_groups(
    model: Model, views: Mapping[str, Any], split: Samples, backend: Backend
) -> tuple[int, float | None] | None:
    """Number of groups, and the share of them that are classified correctly; None where the split has no groups.

    A group's predicted class is the one whose probabilities over its samples have the greatest product: the greatest
    sum of logarithms, summed in float64. The share is None where the model gives no probabilities.
    """
    if split.groups is None:
        return None
    groups, place = np.unique(split.groups, return_inverse=True)
    if not isinstance(model, HasLogProbabilities):
        return len(groups), None
    sums, labels, first = None, np.zeros(len(groups), np.int64), 0
    for batch in batches(model, split, backend):
        logs = backend.to_host(model.log_probabilities(views, batch))
        if sums is None:
            sums = np.zeros((len(groups), logs.shape[1]))
        places = place[first : first + len(logs)]
        np.add.at(sums, places, logs)
        labels[places] = backend.to_host(batch.targets)  # of one group all are equal
        first += len(logs)
    assert sums is not None, "a split has samples"
    return len(groups), float(np.mean(sums.argmax(axis=1) == labels))


def batches(model: Model, split: Samples, backend: Backend) -> Iterator[Batch]:
    """All samples in order, as the model reads them, on its device; a batch is valid until the next one is requested.

    Raises
    ------
    DataError
        The model reads arrays, and one sample is too large as such: see `Samples.buffer`.
    """
    samples = split.read_by(model, backend)
    most = samples.at_once(BATCH)
    buffer, order = samples.buffer(most), samples.source_order()
    buffer.expect(order, 0, len(samples))
    try:
        for first in range(0, len(samples), most):
            yield samples.gather(order[first : min(first + most, len(samples))], buffer).on(backend)
    finally:
        buffer.expect(order, 0, 0)
