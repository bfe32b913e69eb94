"""A copy of a rank's part of the parameters, as fetches fill it.

On a GPU, model and gradient are in device memory. On a CPU they are the memory that the network client, or a shard on
the same host, reads and writes, and nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.arrays.backend import Allocate, Backend, aligned_float32
from dbelief.core.layout import RankPart

ALL = slice(None)


@dataclass
class ParameterBuffer:
    """One copy of a rank's part of the parameters: (n,) float32 on the host and on the device, and segments' versions.

    `locally_modified` is true if local steps have changed it from what those versions hold.
    """

    host: np.ndarray
    device: Any
    views: dict[str, Any]
    versions: np.ndarray
    locally_modified: bool = False

    @classmethod
    def make(
        cls, part: RankPart, segments: int, backend: Backend, allocate: Allocate = aligned_float32
    ) -> ParameterBuffer:
        """Return an empty copy, with version -1 for every segment."""
        host = allocate(part.size)
        device = backend.to_device(host)
        return cls(host, device, part.views(device), np.full(segments, -1, np.int64))

    def prepare_fetch(self) -> None:
        """Request all segments where local steps have changed them: none counts as unchanged then."""
        if self.locally_modified:
            self.versions[:] = -1
            self.locally_modified = False

    def to_device(self, part: slice = ALL) -> None:
        """Copy the fetched parameters, or a contiguous part of them, to the device."""
        if self.device is not self.host:
            self.device[part].set(self.host[part])
