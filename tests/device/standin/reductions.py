"""Reductions along an axis, or of all numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .array import empty, launch, ndarray
from .machine import Machine


def reduce(
    machine: Machine,
    function: Any,
    array: ndarray,
    axis: Any,
    out: ndarray | None,
    keepdims: bool = False,
    **options: Any,
) -> ndarray:
    """Call a reduction."""
    options = {name: value for name, value in options.items() if value is not None}
    one = function(np.ones((1,) * array.ndim, array.dtype), axis=axis, keepdims=True, **options)
    axes = range(array.ndim) if axis is None else [axis % array.ndim]
    left = [(1 if place in axes else length) for place, length in enumerate(array.shape)]
    shape = tuple(left) if keepdims else tuple(n for place, n in enumerate(left) if place not in axes)
    made = empty(machine, shape, one.dtype) if out is None else out
    if made.shape != shape:
        raise ValueError("Out shape is mismatched")

    def run(to: np.ndarray, of: np.ndarray) -> None:
        np.copyto(to, function(of, axis=axis, keepdims=keepdims, **options))

    launch(machine, function.__name__, run, [made], [array])
    return made
