"""The arrays that the three threads of a replica hand to each other. All are made once.

On a GPU model and gradient live on the device; on a CPU they are the memory that the wire, or a shard on the same host,
reads and writes, and nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.arrays.backend import Allocate, Backend, aligned_float32
from dbelief.arrays.push_source import DeviceSource
from dbelief.core.layout import RankPart


@dataclass
class ParameterBuffer:
    """One copy of a rank's part of the parameters: (n,) float32 on the host and on the device, and segments' versions.

    `stepped` says that local steps moved it away from what those versions hold.
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
        """An empty copy, of version -1 everywhere."""
        host = allocate(part.size)
        device = backend.to_device(host)
        return cls(host, device, part.views(device), np.full(segments, -1, np.int64))

    def to_device(self) -> None:
        """Bring what was fetched to where it is computed on."""
        if self.device is not self.host:
            self.device.set(self.host)


@dataclass(kw_only=True)
class PushStats:
    """What a push stands for: the mini-batches behind it."""

    sequence: int = 0
    samples: int = 0
    steps: int = 0
    loss_sum: float = 0.0


@dataclass
class GradientBuffer(PushStats):
    """A rank's part of one gradient on its way: (n,) float32 where it is computed, and what it was computed from.

    `sent` is what a push reads: on a GPU block by block, each sent while the next is copied.
    """

    gradient: Any
    views: dict[str, Any]
    versions: np.ndarray
    sent: Any = None
    rate: float = 0.0
    clock: int = 0

    @classmethod
    def make(
        cls, part: RankPart, segments: int, backend: Backend, allocate: Allocate = aligned_float32
    ) -> GradientBuffer:
        """An empty gradient."""
        gradient = backend.zeros(part.size, allocate)
        return cls(gradient, part.views(gradient), np.zeros(segments, np.int64))

    def complete(self, backend: Backend) -> None:
        """Everything is added up; to be called on the thread that computes."""
        self.sent = self.gradient if backend.name == "numpy" else DeviceSource(backend.xp, self.gradient)
