"""What every codec can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import numpy as np

Decode = Callable[[memoryview, np.ndarray], None]
"""Writes what a payload holds into (n,) float32; raises ValueError, saying why, where it holds no n numbers."""


class Codec(Protocol):
    """Writes numbers as a payload.

    Attributes
    ----------
    name
        In job files.
    keeps
        Whether what a payload leaves out is kept, to be sent with the next one (error feedback). Such numbers are
        encoded once: again they would give another payload.
    """

    name: ClassVar[str]
    keeps: ClassVar[bool]

    def encode(self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()) -> np.ndarray:
        """Encode a segment, or a part of one.

        Parameters
        ----------
        values
            (n,) float32, n at least 1; left as they are.
        residual
            (n,) float32 that earlier payloads left out: added to the values, and overwritten by what this one leaves
            out. None for a codec that keeps nothing.
        cuts
            Where tensors begin within the values, rising, without 0: what is measured of one tensor's numbers does
            not bear on another's.

        Returns
        -------
        uint8 array
            The payload, in memory of its own.

        Raises
        ------
        NotFinite
            Values and residual have no finite sum, and the codec cannot say so in a payload. The residual is lost.
        """
        ...

    @staticmethod
    def decode(payload: memoryview, out: np.ndarray) -> None:
        """See `Decode`; nothing outside `out` is ever touched, whatever the payload."""
        ...


def restore_residual(codec: Codec, payload: memoryview, residual: np.ndarray) -> None:
    """Add what a payload had taken to the residual again: it was not delivered."""
    taken = np.empty_like(residual)
    codec.decode(payload, taken)
    residual += taken
