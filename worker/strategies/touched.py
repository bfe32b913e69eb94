"""The numbers that a bundle of sparse rows touches, as a short vector of their own.

Of a tensor whose rows belong to columns of the inputs (`ReadsColumns`), a bundle reads and changes only the rows of the
columns that occur in it; all other numbers of its gradient are 0. So columns are numbered anew, the tensor has only
these rows, and the unchanged model computes the same numbers with the same bits. Numbers of all other tensors are part
of the short vector too.

Cost: 20 bytes for each touched number and slot, and the bundle's rows; nothing as long as the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dbelief.core.layout import Box, RankPart
from dbelief.core.touched_count import touched_count
from dbelief.data import Samples
from dbelief.data.sparse import SparseSplit
from dbelief.nn import Batch, Model, ReadsColumns, SparseRows


@dataclass(frozen=True)
class TouchedNumbers:
    """What one bundle touches.

    Attributes
    ----------
    positions
        (n,) int64, strictly rising: places of the short vector's numbers in the flat vector.
    part
        Tensors in the short vector.
    batches
        The bundle's portions, with columns of the short tensor; they own their arrays.
    """

    positions: np.ndarray
    part: RankPart
    batches: Sequence[Batch]


def owned(batch: Batch) -> Batch:
    """A copy of a mini-batch of sparse rows, whose arrays its source overwrites."""
    rows: SparseRows = batch.inputs
    copied = SparseRows(rows.indptr.copy(), rows.columns.copy(), rows.values.copy(), rows.features)
    return Batch(copied, batch.targets.copy())


def touched_by(batches: Sequence[Batch], part: RankPart, tensor: str) -> TouchedNumbers:
    """Number the columns of portions anew.

    Parameters
    ----------
    batches
        Of sparse rows; see `owned`.
    part
        All tensors of the model, on one rank.
    tensor
        Name of the one whose rows belong to columns.
    """
    columns = np.unique(np.concatenate([batch.inputs.columns for batch in batches]))
    positions, boxes = list[np.ndarray](), list[Box]()
    for box, start in zip(part.boxes, part.starts, strict=True):
        if box.name != tensor:
            positions.append(np.arange(start, start + box.size))
            boxes.append(box)
            continue
        width = box.size // box.shape[0]
        positions.append((start + width * columns.astype(np.int64)[:, np.newaxis] + np.arange(width)).reshape(-1))
        shape = len(columns), *box.shape[1:]
        boxes.append(replace(box, shape=shape, stop=shape))
    short = [Batch(_renumbered(batch.inputs, columns), batch.targets) for batch in batches]
    return TouchedNumbers(part.start + np.concatenate(positions), RankPart(tuple(boxes), 0), short)


def _renumbered(rows: SparseRows, columns: np.ndarray) -> SparseRows:
    places = np.searchsorted(columns, rows.columns).astype(np.int32)
    return SparseRows(rows.indptr, places, rows.values, len(columns), of=rows.features)


def column_tensor(model: Model, part: RankPart, train: Samples, samples: int) -> str | None:
    """The tensor of which only some rows are to travel with a bundle of so many samples; None: whole vectors are."""
    if not isinstance(train, SparseSplit) or train.gives_dense or not isinstance(model, ReadsColumns):
        return None
    box = next((box for box in part.boxes if box.name == model.column_tensor), None)
    if box is None or box.box_shape != box.shape:
        return None
    touched = touched_count(part.size, box.size, box.shape[0], train.mean_numbers * samples)
    return None if touched is None else box.name
