"""Transfer and computation of a step: volumes by which FireCaffe chooses a strategy (Iandola et al. 2016, section 4).

|W| = 4 bytes for each parameter: a gradient, which data parallelism exchanges (Eq. 1, which leaves out biases)
|D| = 4 bytes, for each sample, for each input of a layer that has weights: activations, which model parallelism
      exchanges (Eq. 2, which is printed with filters in place of inputs; Table 1 agrees with inputs)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .layers import PlannedLayer
from .memory import FLOAT32


@dataclass(frozen=True)
class Volumes:
    """Volumes of one step of all replicas together.

    Attributes
    ----------
    replicas, samples
        Number of replicas, and samples of each one's mini-batch.
    parameters
        Number of trained parameters.
    multiplied, flop
        Per sample: numbers that are multiplied with weights, and operations.
    """

    replicas: int
    samples: int
    parameters: int
    multiplied: int
    flop: int

    @classmethod
    def of(cls, layers: Iterable[PlannedLayer], replicas: int, samples: int) -> Volumes:
        """Volumes of these layers."""
        used = [layer for layer in layers if layer.state != "later"]
        trained = sum(layer.parameters for layer in used if layer.state == "trained")
        multiplied, flop = (sum(each) for each in zip(*((one.multiplied, one.flop) for one in used), strict=True))
        return cls(replicas, samples, trained, multiplied, flop)

    @property
    def batch(self) -> int:
        """Samples of all replicas together."""
        return max(1, self.replicas) * self.samples

    @property
    def weight_bytes(self) -> int:
        """|W|."""
        return FLOAT32 * self.parameters

    @property
    def data_bytes(self) -> int:
        """|D|."""
        return FLOAT32 * self.batch * self.multiplied

    @property
    def step_flop(self) -> int:
        """Operations of all replicas, forward and backward."""
        return self.batch * self.flop

    @property
    def data_parallel(self) -> bool:
        """Whether exchanging gradients takes fewer bytes than exchanging activations."""
        return self.weight_bytes < self.data_bytes

    def described(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "replicas": self.replicas,
            "samples_each": self.samples,
            "samples": self.batch,
            "weight_bytes": self.weight_bytes,
            "data_bytes": self.data_bytes,
            "flop": self.step_flop,
        }
