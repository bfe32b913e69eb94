"""bf16 numbers that replicas have fetched, so that the next fetch brings them the difference from these.

Kept for a segment are the numbers of the newest version that was answered, and their encoded difference from those
before. Replicas of a round all fetch the same version, and have the same one: so a difference is encoded once for all.
A replica that has another version, as after its restart or a missed round, gets the numbers in bf16.

In one `Shard` a version stands for the same numbers: once it is ready, a rule, a program or a set changes them, and
each raises the version. Lock-free pushes do not exclude readers: a shard with them keeps nothing. Snapshot sets and
followers have none of these numbers: another incarnation or owner begins without.

Cost: 2 bytes a number, and a difference of less than that; a bf16 encoding and a difference for each version that is
answered, under the segment's lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from dbelief.codec import bfloat16_difference
from dbelief.codec.bfloat16 import BFloat16


@dataclass(frozen=True)
class _Kept:
    """Newest numbers of a segment that were answered.

    Attributes
    ----------
    halves
        (length,) uint16, patterns of bf16.
    base, difference
        Version of those before, and the payload of the difference from them; None: there is no shorter one.
    """

    version: int
    halves: np.ndarray
    base: int = 0
    difference: np.ndarray | None = None


class PulledNumbers:
    """What is kept of the segments of one shard; a segment's lock guards what is kept of it."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._codec = BFloat16()

    def answer(self, index: int, version: int, values: np.ndarray, base: int | None) -> tuple[np.ndarray, bool]:
        """Payload of a segment's numbers, and whether it is the difference from those of version `base`.

        Parameters
        ----------
        values
            (length,) float32 of this version; the segment's lock is held.
        base
            Version that the reader has; None: none.

        Returns
        -------
        payload, difference
            uint8 array, not to be changed, by `bfloat16_difference` or bf16.
        """
        kept = self._kept.get(index)
        if kept is None or kept.version != version:
            halves = self._codec.encode(values).view(np.uint16)
            if kept is None:
                kept = _Kept(version, halves)
            else:
                difference = bfloat16_difference.encode(halves, kept.halves, kept.version)
                kept = _Kept(version, halves, kept.version, difference)
            self._kept[index] = kept
        if kept.difference is not None and kept.base == base:
            return kept.difference, True
        return kept.halves.view(np.uint8), False

    def retain(self, indices: Collection[int]) -> None:
        """Drop what is kept of all other segments: they are at other shards now."""
        for index in [index for index in self._kept if index not in indices]:
            self._kept.pop(index, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(
            kept.halves.nbytes + (0 if kept.difference is None else kept.difference.nbytes)
            for kept in list(self._kept.values())
        )
