"""Layers whose rows lie in tables by key: sums of rows, and factorisation machines.

Rows are no parameters of the network: a mini-batch reads those of its keys, and `backward` adds to their gradients
(`BatchRows`). What such a layer makes joins what comes from the layer before: behind it ("append"), or added to it
("add"); as a network's first layer it is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from dbelief.errors import ModelError
from dbelief.nn.bag_rows import BagRows, BatchRows
from dbelief.nn.kernels import sparse
from dbelief.nn.model import Array
from dbelief.nn.sparse_rows import SparseRows
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Shape

Join = Literal["append", "add"]


@dataclass(frozen=True)
class TableBag:
    """y = for each column the sum of value * row over its bag, or that over the bag's length ("mean"); 0 if empty.

    With "append" the columns' rows lie side by side; with "add" all are added up. dL/drow = sum of value * dy over all
    places of the row's key, over the bag's length with "mean".

    Attributes
    ----------
    width
        Numbers of a row.
    """

    table: str
    width: int
    columns: tuple[str, ...]
    mode: Literal["sum", "mean"] = "sum"
    join: Join = "append"
    kind: ClassVar[str] = "embedding_bag"
    tensors: ClassVar[tuple[str, ...]] = ()

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Columns by table."""
        return {self.table: self.columns}

    def outputs(self, inputs: Shape) -> Shape:
        """(n + columns * width,) for n numbers, or as the inputs."""
        return joined(inputs, self.width if self.join == "add" else self.width * len(self.columns), self.join)

    def sees(self, start: int, stop: int) -> None:
        """Everything: it is not cut over ranks."""
        return

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """It has no parameters."""
        return ()

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """Nothing is drawn."""
        return 0.0

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y, and what comes beside it."""
        tables, own = _tables(work), _begin(x, y, self.join)
        bags = work.array("bags", (len(y), self.width), y.dtype)
        for place, column in enumerate(self.columns):
            sparse.times(self._bags(tables, column), tables.rows[self.table], bags)
            if self.join == "add":
                np.add(y, bags, out=y)
            else:
                own[:, place * self.width : (place + 1) * self.width] = bags

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Add to the rows' gradients, and write dL/dx where it is asked for."""
        tables, own = _tables(work), _pass_back(x, dy, dx, self.join)
        slopes = work.array("bags", (len(dy), self.width), dy.dtype)
        for place, column in enumerate(self.columns):
            np.copyto(slopes, own if self.join == "add" else own[:, place * self.width : (place + 1) * self.width])
            _add_gradient(work, tables, self.table, self._bags(tables, column), slopes)

    def _bags(self, tables: BatchRows, column: str) -> SparseRows:
        bags = tables.bags(self.table, column)
        if self.mode == "sum":
            return bags
        counts = np.diff(bags.indptr)
        return replace(bags, values=bags.values / np.repeat(counts, counts).astype(np.float32))


@dataclass(frozen=True)
class FactorizationMachine:
    """A factorisation machine over the keys j of all columns, with their values x_j (Rendle 2010, equation 1):

        y = b + sum_j x_j w_j + sum_{i<j} <v_i, v_j> x_i x_j

    The last sum is that of ((sum_j x_j v_j)^2 - sum_j (x_j v_j)^2) / 2 over the numbers of a row (lemma 3.1): it costs
    twice what `TableBag` does. With s = sum_j x_j v_j, dL/dv_j = dy (x_j s - x_j^2 v_j), dL/dw_j = dy x_j, dL/db = dy.

    Attributes
    ----------
    factors, linear
        Names of the tables of v and w; a row of w is one number.
    width
        Numbers of a v.
    """

    factors: str
    linear: str
    width: int
    columns: tuple[str, ...]
    join: Join = "append"
    kind: ClassVar[str] = "fm"
    tensors: ClassVar[tuple[str, ...]] = ("bias",)

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Columns by table."""
        return {self.factors: self.columns, self.linear: self.columns}

    def outputs(self, inputs: Shape) -> Shape:
        """(n + 1,) for n numbers, or as the inputs."""
        return joined(inputs, 1, self.join)

    def sees(self, start: int, stop: int) -> None:
        """Everything: it is not cut over ranks."""
        return

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """Of the bias."""
        return ((1,),)

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """The bias begins with 0."""
        return 0.0

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y, and what comes beside it; leave s."""
        tables, own, m = _tables(work), _begin(x, y, self.join), len(y)
        v, w = tables.rows[self.factors], tables.rows[self.linear]
        sums, part = (work.array(name, (m, self.width), y.dtype) for name in ("sums", "part of sums"))
        squares = work.array("squares", (m, self.width), y.dtype)
        weighed, term = (work.array(name, (m, 1), y.dtype) for name in ("weighed", "term"))
        for total in (sums, squares, weighed):
            total.fill(0)
        for column in self.columns:
            bags = tables.bags(self.factors, column)
            sparse.times(bags, v, part)
            sums += part
            sparse.times(_squared(bags), v * v, part)
            squares += part
            sparse.times(tables.bags(self.linear, column), w, term)
            weighed += term
        np.multiply(sums, sums, out=part)
        part -= squares
        weighed[:, 0] += parameters[0] + np.float32(0.5) * part.sum(axis=1)
        own += weighed

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Add to the rows' gradients; write dL/db, and dL/dx, where they are asked for."""
        tables, m = _tables(work), len(dy)
        slope = work.array("term", (m, 1), dy.dtype)
        np.copyto(slope, _pass_back(x, dy, dx, self.join))
        if gradients:
            gradients[0][0] = slope.sum()
        v = tables.rows[self.factors]
        scaled = work.array("part of sums", (m, self.width), dy.dtype)
        np.multiply(work.array("sums", (m, self.width), dy.dtype), slope, out=scaled)
        own = work.array("own squares", (len(v), 1), dy.dtype)
        for column in self.columns:
            bags = tables.bags(self.factors, column)
            _add_gradient(work, tables, self.factors, bags, scaled)
            sparse.transposed_times(_squared(bags), slope, own)
            tables.gradients[self.factors] -= own * v
            _add_gradient(work, tables, self.linear, tables.bags(self.linear, column), slope)


TableLayer = TableBag | FactorizationMachine
"""A layer whose rows lie in tables."""


def joined(inputs: Shape, own: int, join: Join) -> Shape:
    """Shape of a sample's outputs, of `own` numbers of a layer and what comes from the layer before.

    Raises
    ------
    ModelError
        They cannot be added.
    """
    before = math.prod(inputs)
    if join == "append":
        return (before + own,)
    if before != own:
        raise ModelError(f"is added to the outputs of the layer before, and has {own}, not {before}")
    return (own,)


def _tables(work: Workspace) -> BatchRows:
    assert work.tables is not None, "a network sets them"
    return work.tables


def _begin(x: Array, y: Array, join: Join) -> Array:
    """Copy what comes from the layer before into y, else 0; the part of y that is the layer's own."""
    if isinstance(x, BagRows):
        y.fill(0)
        return y
    before = x.reshape(len(x), -1)
    if join == "add":
        np.copyto(y, before)
        return y
    y[:, : before.shape[1]] = before
    own = y[:, before.shape[1] :]
    own.fill(0)
    return own


def _pass_back(x: Array, dy: Array, dx: Array | None, join: Join) -> Array:
    """Write dL/dx where it is asked for; the part of dy that is the layer's own."""
    if isinstance(x, BagRows):
        return dy
    before = dy.shape[1] if join == "add" else math.prod(x.shape[1:])
    if dx is not None:
        np.copyto(dx, dy[:, :before].reshape(dx.shape))
    return dy if join == "add" else dy[:, before:]


def _add_gradient(work: Workspace, tables: BatchRows, table: str, bags: SparseRows, slopes: Array) -> None:
    """Add bags^T slopes to the gradients of a table's rows."""
    gradient = tables.gradients[table]
    part = work.array(f"part of {table}", gradient.shape, gradient.dtype)
    sparse.transposed_times(bags, slopes, part)
    gradient += part


def _squared(bags: SparseRows) -> SparseRows:
    return replace(bags, values=bags.values * bags.values)
