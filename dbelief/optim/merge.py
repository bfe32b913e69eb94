"""Own parameters and those that an exchange brings, where steps were made while it travelled."""

from __future__ import annotations

from typing import Any

import numpy as np


def merge(xp: Any, values: Any, arrived: Any, sent: Any, room: Any, blend: float) -> None:
    """Merge in place: w <- blend w + (1 - blend) (arrived + (w - sent)).

    Where no step was made since, and `blend` is 0, w becomes what has arrived, to the bit; with 1 it stays as it is.
    Source: Douillard et al. 2025, arXiv:2501.18512, algorithm 2 (alpha); the difference since then is added here.

    Parameters
    ----------
    values, arrived, sent, room
        (n,) float32 arrays of the module `xp`: w, and a place for temporary values. `sent` None: what was sent is w.
    """
    if sent is not None:
        xp.subtract(values, sent, out=room)
        arrived = xp.add(room, arrived, out=room)
    if not blend:
        values[:] = arrived
        return
    xp.subtract(arrived, values, out=room)  # 0 where nothing has changed, which no rounding may
    xp.multiply(room, np.float32(1 - blend), out=room)
    xp.add(values, room, out=values)
