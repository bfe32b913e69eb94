"""Random layers, and what their weights are as one matrix."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from dbelief.nn.kernels import Blocks


class Operands(NamedTuple):
    """What the kernels take, drawn at random: w, x, and y, which is not W x."""

    blocks: Blocks
    w: np.ndarray
    x: np.ndarray
    y: np.ndarray


def draw(blocks: Blocks, batch: int, dtype: str = "float64", seed: int = 0) -> Operands:
    rng = np.random.default_rng(seed)
    shapes = blocks.w_shape, blocks.x_shape(batch), blocks.y_shape(batch)
    return Operands(blocks, *(rng.standard_normal(shape).astype(dtype) for shape in shapes))


@st.composite
def shapes(draws: st.DrawFn) -> tuple[Blocks, int]:
    """Layers and batches, odd and uneven ones, those of a single tile, number, neuron or sample among them."""
    window = draws(st.integers(1, 4))
    rows, columns = draws(st.tuples(*2 * [st.integers(window, window + 4)]))
    depth, neurons, batch = draws(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)))
    return Blocks(rows, columns, window, depth, neurons), batch


def dense(blocks: Blocks, w: np.ndarray) -> np.ndarray:
    """All of W: [nr nc F][rows columns q], zeros where a neuron sees nothing."""
    g, full = blocks.window, np.zeros((*blocks.norms_shape, blocks.rows, blocks.columns, blocks.depth), w.dtype)
    for i, j in itertools.product(range(blocks.nr), range(blocks.nc)):
        full[i, j, :, i : i + g, j : j + g] = w[i, j]
    return full.reshape(-1, blocks.rows * blocks.columns * blocks.depth)
