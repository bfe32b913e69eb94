"""Larger leases where many replicas would request them too often. No clock, no socket.

The time between a replica's requests gives its speed. Its next lease is so large that all replicas together request
about `LEASES_PER_S`, and never larger than its share of half of what is left, so that none is late at the end.
"""

from __future__ import annotations

from dbelief.job.lease_size import FEW, LEASES_PER_S

_MOST_GROWTH = 4
"""Largest ratio of a lease to the one before it: a request soon after a grant may be an exception."""


class LeasePacing:
    """Sizes of the leases of one job.

    Parameters
    ----------
    size
        Samples in a lease of the job's size, and the step of all sizes: whole cycles of fetches and pushes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._last: dict[
            int, tuple[float, int]
        ] = {}  # by incarnation: when its last lease was granted, and its samples

    def samples(self, incarnation: int, replicas: int, left: int, now_s: float) -> int:
        """Samples for the lease that an incarnation requests.

        Parameters
        ----------
        replicas
            Number of living replicas.
        left
            Samples that are not leased yet.
        """
        granted_s, before = self._last.get(incarnation, (now_s, self._size))
        if replicas <= FEW or now_s <= granted_s:
            return self._size
        wanted = before / (now_s - granted_s) * replicas / LEASES_PER_S
        most = min(_MOST_GROWTH * before, left // (2 * replicas))
        return self._size * max(1, int(min(wanted, most) / self._size))

    def granted(self, incarnation: int, samples: int, now_s: float) -> None:
        """Record a lease."""
        self._last[incarnation] = now_s, samples

    def forget(self, incarnation: int) -> None:
        """Drop an incarnation that has ended."""
        self._last.pop(incarnation, None)
