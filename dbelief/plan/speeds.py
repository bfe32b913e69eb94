"""Speeds of the machines and links that a job is planned for."""

from __future__ import annotations

from dataclasses import dataclass

from .allreduce_cost import Link


@dataclass(frozen=True)
class Speeds:
    """Speeds of the machines that a job is planned for.

    Attributes
    ----------
    latency_s
        Seconds for a message of no bytes, from one machine to another.
    bandwidth
        Of each machine's link, in each direction: bytes a second.
    flops
        Of one replica: floating-point operations a second; None where it was not given.
    step_s
        Seconds that one replica computes a mini-batch, if they are known; `flops` is not used then.
    """

    latency_s: float = 1e-4
    bandwidth: float = 125e6
    flops: float | None = None
    step_s: float | None = None

    @property
    def link(self) -> Link:
        """The same as the formulas' `Link`."""
        return Link(self.latency_s, 1 / self.bandwidth)

    def compute_s(self, flop: float) -> float | None:
        """Seconds of a mini-batch of so many operations on one replica; None where its speed is not known."""
        if self.step_s is not None or self.flops is None:
            return self.step_s
        return flop / self.flops


GIGABIT = Speeds()
"""Default speeds."""
