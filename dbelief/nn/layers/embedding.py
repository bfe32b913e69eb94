"""Embedding: a trainable vector for each entry of a table, looked up by whole numbers (Bengio et al. 2003)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dbelief.errors import ModelError
from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Shape, at_least


@dataclass(frozen=True)
class Embedding:
    """y = the rows x of the table, side by side; x of shape (m, n) whole numbers, W of shape (entries, width).

    dL/dW[e] = sum of dy over all places where x is e, in ascending order of samples; on a device in any order.
    It is the first layer: nothing before it would get a gradient.

    Initial values: W uniform in ±sqrt(3), of variance 1, as the inputs that `Dense` expects.

    Cost of `backward`: a sort of the m n whole numbers, and the gradient's entries x width numbers are written.
    """

    entries: int
    width: int
    kind: ClassVar[str] = "embedding"
    tensors: ClassVar[tuple[str, ...]] = ("weight",)

    def __post_init__(self) -> None:
        at_least(1, entries=self.entries, width=self.width)

    def outputs(self, inputs: Shape) -> Shape:
        """(n width,), for inputs of (n,)."""
        if len(inputs) != 1:
            raise ModelError(f"takes rows of whole numbers, not samples of shape {inputs}")
        return (inputs[0] * self.width,)

    def sees(self, start: int, stop: int) -> None:
        """Everything: it is not cut over ranks."""
        return

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """Of the table."""
        return ((self.entries, self.width),)

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """As above."""
        return float(np.sqrt(3.0))

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y.

        Raises
        ------
        ModelError
            A number of x is none of an entry.
        """
        lowest, highest = int(x.min()), int(x.max())
        if lowest < 0 or highest >= self.entries:
            wrong = lowest if lowest < 0 else highest
            raise ModelError(f"embedding: the inputs hold {wrong}, and its entries are 0 to {self.entries - 1}")
        out = y.reshape(*x.shape, self.width)
        if work.xp is np:
            np.take(parameters[0], x, axis=0, out=out, mode="clip")  # "raise" would buffer `out`
        else:
            work.xp.copyto(out, parameters[0][x])

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Write dL/dW."""
        if not gradients:
            return
        (table,) = gradients
        table.fill(0)
        places, rows = x.reshape(-1), dy.reshape(-1, self.width)
        if work.xp is np:
            _add_rows(table, places, rows)
        else:
            work.xp.add.at(table, places, rows)


def _add_rows(table: np.ndarray, places: np.ndarray, rows: np.ndarray) -> None:
    """Add each row to the table's row of its place: `np.add.at`, which takes up to 3 times as long."""
    order = np.argsort(places, kind="stable")
    ascending = places[order]
    starts: Any = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))
    table[ascending[starts]] = np.add.reduceat(rows[order], starts, axis=0)
