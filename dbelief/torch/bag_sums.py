"""Sums of rows over bags on the CPU, as products with sparse rows, in compiled loops.

torch's own gradient of `embedding_bag` sorts all places of a mini-batch, on one core in several times the time of the
sums. Here it is a pass over the places, in their order: the same bits at each call. It has gradients of its own.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from dbelief.nn.kernels import sparse
from dbelief.nn.sparse_rows import SparseRows


def bags_of(places: torch.Tensor, offsets: torch.Tensor | None, rows: int) -> SparseRows | None:
    """Bags as a sparse matrix, a row a bag; None where they are on a device, or none that `embedding_bag` takes.

    Parameters
    ----------
    places
        (bags, n) int64, or (n,) with offsets: positions of rows, less than `rows`.
    offsets
        (bags,) int64: where each bag begins; None: of (bags, n) places.
    """
    if places.device.type != "cpu" or places.dim() != (2 if offsets is None else 1):
        return None
    count = places.numel()
    if offsets is None:
        ends = np.arange(len(places) + 1) * places.shape[1]
    elif offsets.dim() != 1 or offsets.device.type != "cpu" or offsets.dtype not in (torch.int64, torch.int32):
        return None
    else:
        ends = np.append(offsets.numpy().astype(np.int64, copy=False), count)
        if ends[0] != 0 or (np.diff(ends) < 0).any():
            return None
    return SparseRows(ends, places.reshape(-1).numpy().astype(np.int32), np.ones(count, np.float32), rows)


def bag_sums(rows: torch.Tensor, bags: SparseRows, mode: Literal["sum", "mean"] = "sum") -> torch.Tensor:
    """(bags, width) float32: sums or means of (n, width) float32 rows on the CPU; 0 of an empty bag.

    Differentiable, any number of times.
    """
    made: torch.Tensor = _Times.apply(rows, bags)
    if mode == "sum":
        return made
    return made / torch.from_numpy(np.maximum(np.diff(bags.indptr), 1))[:, None]


class _Times(torch.autograd.Function):  # type: ignore[misc]
    """y = x W of constant sparse rows x."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: SparseRows) -> torch.Tensor:
        ctx.x = x
        y = torch.empty(len(x), weight.shape[1], dtype=torch.float32, device="cpu")
        sparse.times(x, weight.detach().contiguous().numpy(), y.numpy())
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _TransposedTimes.apply(dy, ctx.x), None


class _TransposedTimes(torch.autograd.Function):  # type: ignore[misc]
    """W = x^T y of constant sparse rows x."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, x: SparseRows) -> torch.Tensor:
        ctx.x = x
        weight = torch.empty(x.features, y.shape[1], dtype=torch.float32, device="cpu")
        sparse.transposed_times(x, y.detach().contiguous().numpy(), weight.numpy())
        return weight

    @staticmethod
    def backward(ctx: Any, dweight: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Times.apply(dweight, ctx.x), None
