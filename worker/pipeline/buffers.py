"""Buffer of one gradient that the threads of a replica pass to each other; allocated once.

On a CPU it is the memory that the network client, or a shard on the same host, reads, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.arrays.backend import Allocate, Backend, aligned_float32
from dbelief.core.layout import RankPart
from dbelief.core.push import PushStats


@dataclass
class GradientBuffer(PushStats):
    """A rank's part of one gradient to be pushed: (n,) float32 on the device, and the versions it was computed from.

    `sent` is what a push reads: on a GPU block by block, each sent while the next is copied. `fetch` is the clock for
    which its push also fetches parameters; None: it does not. `absent`: names of the parameters that took no part in
    any of its mini-batches. `rows`: by bucket, packed gradients of rows of tables; None: the job has no tables.
    """

    gradient: Any
    views: dict[str, Any]
    versions: np.ndarray
    sent: Any = None
    rate: float = 0.0
    clock: int = 0
    fetch: int | None = None
    absent: Set[str] = frozenset()
    rows: Mapping[int, np.ndarray] | None = None

    @classmethod
    def make(
        cls, part: RankPart, segments: int, backend: Backend, allocate: Allocate = aligned_float32
    ) -> GradientBuffer:
        """Return an empty gradient."""
        gradient = backend.zeros(part.size, allocate)
        return cls(gradient, part.views(gradient), np.zeros(segments, np.int64))
