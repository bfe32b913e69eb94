"""What block-local filters and their alpha begin with (Coates et al. 2013 print no rule)."""

from __future__ import annotations

import math

import numpy as np

from dbelief.nn.kernels import Blocks
from dbelief.nn.model import Drawn


def tensor_shapes(blocks: Blocks) -> dict[str, tuple[int, ...]]:
    """Shapes of `weight` and `alpha`."""
    return {"weight": blocks.w_shape, "alpha": (1,)}


def initial(blocks: Blocks, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw `weight` and `alpha`, whole."""
    weight = np.empty(blocks.w_shape, np.float32)
    values = {"weight": weight}
    for name, first, rows in initial_rows(blocks, rng):
        if name == "weight":
            weight[first : first + len(rows)] = rows
        else:
            values[name] = rows
    return values


def initial_rows(blocks: Blocks, rng: np.random.Generator) -> Drawn:
    """Draw W~ from a Gaussian, with rows of about unit length: for one row of blocks after the other.

    alpha is what is best for such a W, about, where lambda is 0 and the numbers of x are alike and unrelated:
    tr(W^T W) / tr((W^T W)^2). Two neurons that both see n numbers add n / K^2 to the latter.
    """
    k = blocks.fan_in
    row = np.empty((1, *blocks.w_shape[1:]), np.float32)  # one for all: each new one is new memory
    for first in range(blocks.nr):
        rng.standard_normal(out=row, dtype=np.float32)
        row *= np.float32(1 / math.sqrt(k))
        yield "weight", first, row
    seen_by = (np.convolve(np.ones(sides), np.ones(blocks.window)) for sides in (blocks.nr, blocks.nc))
    rows, columns = ((blocks_there**2).sum() for blocks_there in seen_by)
    shared = blocks.depth * rows * columns * blocks.neurons**2 / k**2
    alpha = 1 / (1 + shared / math.prod(blocks.norms_shape))
    yield "alpha", 0, np.full(1, alpha, np.float32)
