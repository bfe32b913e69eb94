"""Divergence detection on the training loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

AVERAGED_SAMPLES = 2_000
"""The loss is an exponential average over about this many samples: enough to see through mini-batch noise."""


@dataclass
class DivergenceDetector:
    """Average training loss, and whether it has diverged.

    Attributes
    ----------
    factor, seconds
        A loss above `factor` times its first value for so many seconds is divergence.
    loss, first_loss
        The average, and its first value; NaN before the first report.
    not_finite
        Losses and gradients that were NaN or infinite.
    """

    factor: float = 10.0
    seconds: float = 10.0
    loss: float = math.nan
    first_loss: float = math.nan
    not_finite: int = 0
    _high_since_s: float | None = None

    def record(self, loss: float, samples: int, trained: int, now_s: float) -> str | None:
        """Add the mean loss of some samples; returns why the job is to fail, where it has diverged.

        `trained`: samples of the job so far, for the message.
        """
        if not math.isfinite(loss):
            self.not_finite += 1
            return f"diverged: the training loss is {loss} after {trained} samples; try a lower rate"
        if math.isnan(self.loss):
            self.loss = self.first_loss = loss
        self.loss += (loss - self.loss) * min(1.0, samples / AVERAGED_SAMPLES)
        # A loss that may be negative has no multiples: for it only "not finite" is divergence.
        if self.first_loss <= 0.0 or self.loss <= self.factor * self.first_loss:
            self._high_since_s = None
        elif self._high_since_s is None:
            self._high_since_s = now_s
        elif now_s - self._high_since_s >= self.seconds:
            return (
                f"diverged: the training loss {self.loss:.4g} has been above {self.factor:g} times "
                f"its start ({self.first_loss:.4g}) for {now_s - self._high_since_s:.0f} s; try a lower rate"
            )
        return None
