"""Totals of the pushes of one incarnation, as its reports to the coordinator carry them."""

from __future__ import annotations

from dbelief.core.push import LedgerRow, PushResult, StalenessHistogram
from dbelief.rpc.pb import coordination_pb2 as wire


class PushTotals:
    """Acknowledged pushes since this incarnation joined. Not thread-safe.

    Attributes
    ----------
    progress
        The totals, and the row of the last push.
    """

    def __init__(self, sequence: int = 0) -> None:
        self.progress = wire.Progress(sequence=sequence)
        self._staleness = StalenessHistogram()

    @property
    def staleness(self) -> list[int]:
        """Pushes by class of their staleness: see `StalenessHistogram`."""
        return self._staleness.counts

    def add(self, row: LedgerRow, samples: int, steps: int, loss_sum: float, pushed: PushResult) -> None:
        """Add an acknowledged push.

        Parameters
        ----------
        samples, steps
            Behind the push.
        loss_sum
            Mean loss of each step times its samples, summed.
        """
        progress = self.progress
        progress.sequence, progress.lease, progress.position = row
        progress.pushes += 1
        progress.samples += samples
        progress.steps += steps
        progress.loss_sum += loss_sum
        progress.staleness_sum += pushed.staleness
        progress.lost += pushed.lost
        progress.open_round = max(progress.open_round, pushed.clock)
        self._staleness.add(pushed.staleness)
