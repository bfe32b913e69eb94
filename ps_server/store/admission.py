"""Validation of pushes before they change a segment. Independent of the wire format."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import numpy as np

from dbelief.core.push import ACCRUED, PARAMETERS, Push
from dbelief.errors import Rejected

from .segment import Segment

DTYPES: Mapping[str, type[np.generic]] = {ACCRUED: np.float64}
"""Element type of each named vector; float32 for names that are not listed."""


class PushValidator:
    """Push validation of one shard.

    Attributes
    ----------
    ready
        Whether initial values are complete, and pushes by the rule are accepted.
    fenced
        Pusher incarnations that have ended; their pushes are refused.
    """

    def __init__(self, staleness: int | None) -> None:
        self.ready = False
        self.fenced: set[int] = set()
        self._staleness = staleness
        self._lock = threading.Lock()

    def fence(self, incarnations: Iterable[int]) -> None:
        """Refuse pushes of these incarnations from now on."""
        with self._lock:
            self.fenced.update(incarnations)

    def check(self, push: Push, segment: Segment, gradient: np.ndarray) -> None:
        """Raise Rejected for a push that must not change the segment; the segment's lock is held."""
        index = segment.span.index
        if push.pusher.incarnation in self.fenced:
            raise Rejected(
                f"segment {index}: replica {push.pusher.replica} in life {push.pusher.incarnation} is fenced"
            )
        if not push.assign and not self.ready:
            raise Rejected(f"segment {index}: initial values are not complete yet")
        if push.bundle is not None:
            self._check_bundle(push, segment, gradient)
            return
        if not push.assign and push.vector != PARAMETERS:
            raise Rejected(f"segment {index}: the rule applies to {PARAMETERS!r}, not to {push.vector!r}")
        if not push.assign and PARAMETERS not in segment.vectors:  # a program has rotated it to another name
            raise Rejected(f"segment {index}: has no vector {PARAMETERS!r} now")
        dtype = np.dtype(DTYPES.get(push.vector, np.float32))
        if gradient.dtype != dtype:
            raise Rejected(f"segment {index}: {gradient.dtype} numbers for {push.vector!r}, which holds {dtype}")
        if not push.assign and self._staleness is not None and len(gradient) != segment.span.length:
            raise Rejected(
                f"segment {index}: with the staleness dial a push holds all {segment.span.length} numbers, "
                f"not {len(gradient)}"
            )

    @staticmethod
    def _check_bundle(push: Push, segment: Segment, gradient: np.ndarray) -> None:
        index = segment.span.index
        if push.assign or push.vector != ACCRUED:
            raise Rejected(f"segment {index}: bundles are added to {ACCRUED!r}, not to {push.vector!r}")
        if len(gradient) != segment.span.length:
            raise Rejected(f"segment {index}: a bundle has all {segment.span.length} numbers, not {len(gradient)}")
        if push.clock < 1:
            raise Rejected(f"segment {index}: bundle {push.bundle} of pass {push.clock}; passes count from 1")
