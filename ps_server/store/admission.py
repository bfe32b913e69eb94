"""Admission of what clients may store on a shard: limits of each kind, and the validation of pushes. No wire format.

A request beyond a limit, or an invalid push, is refused before anything is allocated or changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import ACCRUED, PARAMETERS, Push, Pusher
from dbelief.errors import Rejected
from dbelief.process.runtime import runtime

MOST_VECTORS = 256
"""Limit of named vectors; L-BFGS with the longest history that a job may have needs 2 of 100 and a few."""
MOST_PUSHERS = 2048
"""Limit of unsettled incarnations of replicas' ranks that push; a job has at most half as many members at a time."""
MOST_CARRIED = 16_384
"""Limit of arrays of a migrating segment: its vectors, the rule's state, staged gradients and cached replies."""
MOST_ROUNDS = 64
"""Limit of staged rounds; a replica that pushes in rounds waits for each to be applied."""

MOST_BLOCKS = 64
"""Limit of shared-memory blocks mapped per connection; a worker has one for each array that it sends or fills."""
MOST_SHARED_BYTES = 256 << 30
"""Bytes of shared memory over all connections; it is the workers' memory: here it costs a page table of 1/512."""

_FLOAT32 = np.dtype(np.float32)
DTYPES: Mapping[str, np.dtype[Any]] = {ACCRUED: np.dtype(np.float64)}
"""Element type of each named vector; float32 for names that are not listed."""


def check_limit(what: str, key: object, held: Collection[object], most: int) -> None:
    """Accept a key that is held already, or one more.

    Raises
    ------
    Rejected
        The limit is reached.
    """
    if key not in held and len(held) >= most:
        raise Rejected(f"there are {most} {what} already, and {key!r} would be one more")


class PushAdmission:
    """Admission of pushes to one shard.

    Attributes
    ----------
    ready
        Whether initial values are complete, and pushes by the rule are accepted.
    fenced
        Pusher incarnations that have ended; their pushes are refused.
    pushers
        Pushers whose incarnations are not settled.
    """

    def __init__(self, staleness: int | None) -> None:
        self.ready = False
        self.fenced: set[int] = set()
        self.pushers: set[Pusher] = set()
        self._staleness = staleness
        self._lock = runtime.lock()

    def fence(self, incarnations: Iterable[int]) -> None:
        """Refuse pushes of these incarnations from now on."""
        with self._lock:
            self.fenced.update(incarnations)

    def forget(self, incarnations: Collection[int]) -> None:
        """Remove the pushers of incarnations that have ended for good."""
        with self._lock:
            self.pushers = {pusher for pusher in self.pushers if pusher.incarnation not in incarnations}

    def admit(self, push: Push, span: SegmentSpan, gradient: np.ndarray) -> None:
        """Validate a push to a segment, and register its pusher; the lock is held.

        Raises
        ------
        Rejected
            The push must not change the segment, or there are too many pushers.
        """
        self._check(push, span, gradient)
        if push.pusher not in self.pushers:
            with self._lock:
                check_limit("pushers", push.pusher, self.pushers, MOST_PUSHERS)
                self.pushers.add(push.pusher)

    def _check(self, push: Push, span: SegmentSpan, gradient: np.ndarray) -> None:
        index = span.index
        if push.pusher.incarnation in self.fenced:
            raise Rejected(
                f"segment {index}: replica {push.pusher.replica} in incarnation {push.pusher.incarnation} is fenced"
            )
        if not push.assign and not self.ready:
            raise Rejected(f"segment {index}: initial values are not complete yet")
        if push.bundle is not None:
            self._check_bundle(push, span, gradient)
            return
        if not push.assign and push.vector != PARAMETERS:
            raise Rejected(f"segment {index}: the rule applies to {PARAMETERS!r}, not to {push.vector!r}")
        dtype = DTYPES.get(push.vector, _FLOAT32)
        if gradient.dtype != dtype:
            raise Rejected(f"segment {index}: {gradient.dtype} numbers for {push.vector!r}, which holds {dtype}")
        if len(gradient) != span.length and not (push.assign or self._staleness is None or span.by_key):
            raise Rejected(
                f"segment {index}: with a staleness bound a push holds all {span.length} numbers, not {len(gradient)}"
            )

    @staticmethod
    def _check_bundle(push: Push, span: SegmentSpan, gradient: np.ndarray) -> None:
        index = span.index
        if push.assign or push.vector != ACCRUED:
            raise Rejected(f"segment {index}: bundles are added to {ACCRUED!r}, not to {push.vector!r}")
        if len(gradient) != span.length and not push.packed:
            raise Rejected(f"segment {index}: a bundle has all {span.length} numbers, not {len(gradient)}")
        if push.clock < 1:
            raise Rejected(f"segment {index}: bundle {push.bundle} of pass {push.clock}; passes count from 1")
