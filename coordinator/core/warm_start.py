"""Warm start: one replica trains alone before the others join in (DistBelief, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class WarmStart:
    """Which replica trains alone, and until when.

    Attributes
    ----------
    samples, loss
        The warm start ends after this count of samples, or when the average training loss is that low; None: no such
        condition. Without a condition there is no warm start.
    active
        Whether it still lasts.
    replica
        Incarnation of the replica that trains alone; None until one requests work, and again when that one is removed.
    """

    samples: int | None = None
    loss: float | None = None
    active: bool = field(init=False)
    replica: int | None = None

    def __post_init__(self) -> None:
        self.active = self.samples is not None or self.loss is not None

    def admits(self, incarnation: int) -> bool:
        """Whether a replica may train now; the first to request work is the one that trains alone."""
        if self.active and self.replica is None:
            self.replica = incarnation
        return not self.active or self.replica == incarnation

    def remove(self, incarnation: int) -> None:
        """A replica has left: where it trained alone, the next one takes its place."""
        if self.replica == incarnation:
            self.replica = None

    def room(self, leased: int, ahead: bool = False) -> int | None:
        """Samples that may still be leased before the end; None where that has no bound.

        `ahead`: the replica draws ahead of its steps. It would wait here for steps that it makes only after this.
        """
        return None if not self.active or self.samples is None or ahead else max(0, self.samples - leased)

    def end_if_due(self, samples: int, loss: float) -> bool:
        """End it where a condition holds, and return whether it ends now; `loss` is the average, NaN where unknown."""
        if not self.active:
            return False
        by_samples = self.samples is not None and samples >= self.samples
        by_loss = self.loss is not None and loss <= self.loss
        self.active = not (by_samples or by_loss)
        return not self.active
