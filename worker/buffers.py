"""The arrays that the three threads of a replica hand to each other. All are made once.

On a GPU model and gradient live on the device and the wire reads host copies; on a CPU both are the same memory and
nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.backend import Backend, aligned
from dbelief.layout import Layout


@dataclass
class Fetched:
    """One copy of the parameters: (N,) float32 on the host and on the device, and each segment's version.

    `stepped` says that local steps moved it away from what those versions hold.
    """

    host: np.ndarray
    device: Any
    views: dict[str, Any]
    versions: np.ndarray
    stepped: bool = False

    @classmethod
    def make(cls, layout: Layout, segments: int, backend: Backend) -> Fetched:
        """An empty copy, of version -1 everywhere."""
        host = aligned(layout.size, np.float32)
        device = backend.to_device(host)
        return cls(host, device, layout.views(device), np.full(segments, -1, np.int64))

    def to_device(self) -> None:
        """Bring what was fetched to where it is computed on."""
        if self.device is not self.host:
            self.device.set(self.host)


@dataclass
class Outgoing:
    """One gradient on its way: (N,) float32 to be sent, and what it was computed from.

    `device` is where the gradient is computed; on a CPU it is `host` itself.
    """

    host: np.ndarray
    device: Any
    views: dict[str, Any]
    versions: np.ndarray
    sequence: int = 0
    rate: float = 0.0
    samples: int = 0
    steps: int = 0
    clock: int = 0
    loss_sum: float = 0.0

    @classmethod
    def make(cls, layout: Layout, segments: int, backend: Backend) -> Outgoing:
        """An empty gradient."""
        host = aligned(layout.size, np.float32)
        device = backend.to_device(host)
        return cls(host, device, layout.views(device), np.zeros(segments, np.int64))

    def to_host(self) -> None:
        """Bring the gradient to where it is sent from."""
        if self.device is not self.host:
            self.device.get(out=self.host)
