"""Loss, accuracy and metrics of one set of parameters over a complete split, by sample or by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dbelief.arrays.backend import Backend, aligned
from dbelief.core.layout import Layout, RankPart
from dbelief.data import BatchBuffer, Split
from dbelief.errors import ModelError
from dbelief.nn import Batch, Evaluates, HasLogProbabilities, Model
from dbelief.nn.model import GivesOutputs

from .metrics import Metrics

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
    split: Split,
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
    for batch in _batches(split, backend):
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
    metrics: Metrics, model: Model, views: Mapping[str, Any], split: Split, backend: Backend
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
    outputs, first = np.empty((len(split), metrics.outputs), np.float32), 0
    for batch in _batches(split, backend):
        found = np.asarray(backend.to_host(model.last_layer(views, batch)))
        if found.shape != (len(batch), metrics.outputs):
            raise ModelError(
                f"evaluate.metrics: last_layer gives an array of shape {found.shape}, expected "
                f"({len(batch)}, {metrics.outputs})"
            )
        outputs[first : first + len(batch)] = found
        first += len(batch)
    return metrics.values(outputs, split.targets)


def evaluate_groups(
    model: Model, views: Mapping[str, Any], split: Split, backend: Backend
) -> tuple[int, float | None] | None:
    """Number of groups, and the share of them that are classified correctly; None where the split has no groups.

    A group's predicted class is the one whose probabilities over its samples have the greatest product: the greatest
    sum of logarithms, summed in float64. The share is None where the model gives no probabilities.
    """
    if split.groups is None:
        return None
    groups, firsts, place = np.unique(split.groups, return_index=True, return_inverse=True)
    if not isinstance(model, HasLogProbabilities):
        return len(groups), None
    sums, first = None, 0
    for batch in _batches(split, backend):
        logs = backend.to_host(model.log_probabilities(views, batch))
        if sums is None:
            sums = np.zeros((len(groups), logs.shape[1]))
        np.add.at(sums, place[first : first + len(logs)], logs)
        first += len(logs)
    assert sums is not None, "a split has samples"
    return len(groups), float(np.mean(sums.argmax(axis=1) == split.targets[firsts]))


def _batches(split: Split, backend: Backend) -> Iterator[Batch]:
    """All samples in order, on the backend's device; a batch is valid until the next one is requested."""
    buffer = BatchBuffer(split, min(BATCH, len(split)))
    for first in range(0, len(split), BATCH):
        batch = split.gather(np.arange(first, min(first + BATCH, len(split))), buffer)
        yield Batch(backend.to_device(batch.inputs), backend.to_device(batch.targets))
