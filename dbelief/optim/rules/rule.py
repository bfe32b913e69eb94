"""What a shard asks of an update rule."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

Rate = float | np.floating[Any]
"""Learning rate of a push."""


class Rule(Protocol):
    """An update of w by a gradient g, element by element.

    No element looks at another, so a vector may be cut anywhere: the parts give the same bits as the whole.

    Each rule is written twice: once as a formula in array operations, for reading, tests and CuPy
    (`apply_reference`), once as one loop that numba compiles (`apply`). In float32 both give the same bits.
    A rule keeps no per-element state: that is stored beside the parameters, in vectors named by `state`.
    """

    @property
    def name(self) -> str:
        """Its name in a job file."""
        ...

    @property
    def state(self) -> Mapping[str, float]:
        """Its float32 state vectors, in the order in which `apply` takes them: what every element starts with."""
        ...

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w and states in place, with the interpreter lock released.

        Parameters
        ----------
        w : float32, shape (n,), contiguous
        g : float32, shape (n,), contiguous
            May be read-only and at any address (a view into a received message).
        states : one float32 array of shape (n,), contiguous, for each name in `state`
        rate : float
            Learning rate of this push.
        step : int
            1 for the first push that this segment sees, then one more for each.

        Raises
        ------
        ValueError
            The arrays are not of one length.
        TypeError
            An array is not float32 or not contiguous.
        """
        ...

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Do the same with array operations of `xp`, in the dtype of w (float32 or float64)."""
        ...
