"""Account of a script's steps: what has been stepped since the last push, and what pushes under way complete."""

from __future__ import annotations

import math
from collections import deque

from dbelief.core.push import LedgerRow, PushResult
from dbelief.script.drawn import Stepped
from dbelief.script.progress import PushedSteps, ScriptProgress


class StepAccount:
    """Steps of one incarnation, and the pushes that complete them, in order.

    Parameters
    ----------
    reports
        Where acknowledged pushes are recorded.
    sequence
        Number of the last push before the first step.

    Attributes
    ----------
    last
        The last step, where no push is begun that completes it; else None.
    begun
        Whether there was a step.
    """

    def __init__(self, reports: ScriptProgress, sequence: int) -> None:
        self._reports, self._sequence = reports, sequence
        self.last: Stepped | None = None
        self.begun = False
        self._loss = self._loss_sum = 0.0
        self._samples = self._steps = 0
        self._under_way: deque[PushedSteps] = deque()

    def add(self, stepped: Stepped, samples: int) -> None:
        """Count a step, before it is pushed."""
        self.last, self.begun = stepped, True
        self._samples += samples
        self._steps += 1

    def add_loss(self, loss: float, samples: int, left_out: bool) -> None:
        """Count a step's loss; that of one which was left out may have overflowed, and is as the one before then."""
        if not left_out or math.isfinite(loss):
            self._loss = loss
        self._loss_sum += self._loss * samples
        if left_out:
            self._reports.left_out()

    def exchanged(self, sequence: int, pushed: PushResult | None) -> None:
        """Record what a step or a wait has done: the number of the last push begun, and the answer of the oldest."""
        if sequence != self._sequence:
            assert self.last is not None, "a push completes a step"
            row = LedgerRow(sequence, self.last.lease.id, self.last.position)
            self._under_way.append(PushedSteps(row, self._samples, self._steps, self._loss_sum))
            self._sequence, self.last = sequence, None
            self._loss_sum, self._samples, self._steps = 0.0, 0, 0
        steps = None if pushed is None else self._under_way.popleft()
        self._reports.travels = bool(self._under_way)
        if steps is None or pushed is None:
            self._reports.report_at_intervals()
        else:
            self._reports.acknowledged(steps, pushed)
