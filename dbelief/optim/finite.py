"""Whether numbers are numbers, before they are sent to where others compute with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dbelief.arrays.backend import on_device_of
from dbelief.core.layout import Layout, RankPart
from dbelief.errors import NonFinite


def check_finite(values: Any, layout: Layout | RankPart, what: str = "gradient") -> float:
    """The Euclidean norm of (N,) float32 values of a layout, on the host or a device.

    Raises
    ------
    NonFinite
        Where there is NaN or infinity; names the tensor and counts the numbers.

    Notes
    -----
    One pass, without a temporary: the squares' sum is finite only if all numbers are (or are huge, which is looked
    into).
    """
    with np.errstate(over="ignore"), on_device_of(values):  # a push thread asks for what another one computed
        squares = float(values.dot(values))
    if math.isfinite(squares):
        return math.sqrt(squares)
    if not isinstance(values, np.ndarray):
        values = values.get()
    bad = np.flatnonzero(~np.isfinite(values))
    if not bad.size:  # the squares overflow float32, the numbers do not
        return float(np.linalg.norm(values.astype(np.float64)))
    name = layout.tensor_at(int(bad[0]))
    raise NonFinite(f"{what} of {name!r} holds {values[bad[0]]} ({bad.size} of {values.size} numbers are not finite)")
