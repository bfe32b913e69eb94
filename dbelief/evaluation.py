"""Loss and accuracy of one set of parameters over a whole split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dbelief.backend import Backend, aligned
from dbelief.data import BatchBuffer, Split
from dbelief.layout import Layout, RankPart
from dbelief.nn import Batch, Evaluates, Model

BATCH = 1_000
"""Samples per forward pass: large enough for BLAS, small beside the data."""


def evaluate(
    model: Model,
    views: Mapping[str, Any],
    split: Split,
    layout: Layout | RankPart,
    backend: Backend,
    moved: Callable[[], None] = lambda: None,
) -> tuple[float, float | None]:
    """Mean loss, and the share of right answers where the model can tell it.

    A model without `evaluate` is asked for its loss alone; its gradient goes into a scratch vector. `moved` is called
    after each batch.
    """
    buffer = BatchBuffer(split, min(BATCH, len(split)))
    scratch: dict[str, Any] | None = None
    loss_sum, right, tells = 0.0, 0, isinstance(model, Evaluates)
    for first in range(0, len(split), BATCH):
        batch = split.gather(np.arange(first, min(first + BATCH, len(split))), buffer)
        if backend.name != "numpy":
            batch = Batch(backend.to_device(batch.inputs), backend.to_device(batch.targets))
        if isinstance(model, Evaluates):
            loss, hits = model.evaluate(views, batch)
            loss_sum += loss
            if hits is None:
                tells = False
            else:
                right += hits
        else:
            if scratch is None:
                scratch = layout.views(backend.to_device(aligned(layout.size, np.float32)))
            loss_sum += model.loss_and_gradient(views, batch, scratch) * len(batch)
        moved()
    return loss_sum / len(split), right / len(split) if tells else None
