"""Account of the samples that a script has drawn from its leases, and has stepped or skipped. No socket, no clock.

Batches are drawn ahead of the steps, by a data loader's processes, and are stepped in the order in which they were
drawn. So a step completes the oldest batches, and what it completes is a lease and a position in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dbelief.core.lease import DataLease
from dbelief.errors import UserError


class DrawnBatch(NamedTuple):
    """Samples from position `start` to `stop` of a lease, which a sampler gives in so many `parts`."""

    lease: DataLease
    start: int
    stop: int
    parts: int = 1


class Stepped(NamedTuple):
    """What a step completes.

    Attributes
    ----------
    lease, position
        See `Push`.
    samples_before
        Samples leased before the step, over all replicas: its place in the learning-rate schedule.
    first
        The first batch of the step.
    """

    lease: DataLease
    position: int
    samples_before: int
    first: DrawnBatch


class LockstepBlock(NamedTuple):
    """Leases that are trained in lockstep.

    Attributes
    ----------
    before
        Samples leased before the first of them.
    samples
        Of each.
    """

    before: int
    samples: tuple[int, ...]

    def samples_before(self, position: int) -> int:
        """Samples of all replicas before the step that begins at a position of each lease."""
        return self.before + sum(min(position, samples) for samples in self.samples)


@dataclass
class _Open:
    """A lease with samples that are not drawn yet, from `drawn` on."""

    lease: DataLease
    drawn: int = 0


class DrawnBatches:
    """Leases of one incarnation, in the order in which they were granted, and the batches drawn from them.

    Attributes
    ----------
    last_lease
        Id of the last lease that was received; 0: none.
    undelivered
        Number of the newest batches that a loader has drawn, and not delivered to the loop.
    """

    def __init__(self) -> None:
        self.last_lease = 0
        self.undelivered: Callable[[], int] = lambda: 0
        self._open: deque[_Open] = deque()
        self._drawn: deque[DrawnBatch] = deque()
        self._blocks: dict[int, LockstepBlock] = {}  # by lease

    def receive(self, lease: DataLease, block: LockstepBlock | None = None) -> None:
        """Add a lease, and its block in lockstep; one that was received before is ignored."""
        if lease.id > self.last_lease:
            self.last_lease = lease.id
            self._open.append(_Open(lease))
            if block is not None:
                self._blocks = {one: known for one, known in self._blocks.items() if self._is_open(one)}
                self._blocks[lease.id] = block

    def _is_open(self, lease: int) -> bool:
        return any(batch.lease.id == lease for batch in self._drawn) or any(o.lease.id == lease for o in self._open)

    @property
    def pending(self) -> int:
        """Number of batches that are drawn, and neither stepped nor skipped."""
        return len(self._drawn)

    @property
    def pending_samples(self) -> int:
        """Number of samples in the pending batches."""
        return sum(batch.stop - batch.start for batch in self._drawn)

    def are_one_step(self, samples: int) -> bool:
        """Whether the pending batches are of one step of so many samples, the last one of a lease being smaller."""
        first, last = self._drawn[0], self._drawn[-1]
        return first.lease.id == last.lease.id and first.start // samples == (last.stop - 1) // samples

    @property
    def undrawn(self) -> int:
        """Number of samples that are leased and not drawn."""
        return sum(one.lease.samples - one.drawn for one in self._open)

    @property
    def open_leases(self) -> int:
        """Number of leases with samples that are not drawn."""
        return len(self._open)

    @property
    def epoch(self) -> int | None:
        """Epoch of the next sample to be drawn; None where none is leased."""
        return self._open[0].lease.epoch if self._open else None

    def draw(self, most: int, parts: int = 1) -> DrawnBatch:
        """Draw the next batch of `most` samples at most, all of one lease; there must be undrawn samples."""
        one = self._open[0]
        batch = DrawnBatch(one.lease, one.drawn, min(one.lease.samples, one.drawn + most), parts)
        one.drawn = batch.stop
        if one.drawn == one.lease.samples:
            self._open.popleft()
        self._drawn.append(batch)
        return batch

    def undraw_undelivered(self) -> None:
        """Have what a loader has drawn, whose loop was left before its end, drawn again by the next one."""
        for _ in range(self.undelivered()):
            batch = self._drawn.pop()
            if self._open and self._open[0].lease.id == batch.lease.id:
                self._open[0].drawn = batch.start
            else:
                self._open.appendleft(_Open(batch.lease, batch.start))
        self.undelivered = lambda: 0

    def next(self) -> DrawnBatch | None:
        """The oldest batch that is neither stepped nor skipped: the one that the loop computes now."""
        return self._drawn[0] if self._drawn else None

    def step(self, samples: int) -> Stepped:
        """Complete the oldest batches, which have so many samples together.

        Raises
        ------
        UserError
            No such number of batches has so many samples; then nothing is completed.
        """
        batches = list(self._oldest(samples, "sync.step"))
        for _ in batches:
            self._drawn.popleft()
        first, last = batches[0], batches[-1]
        block = self._blocks.get(first.lease.id)
        before = first.lease.samples_before + first.start if block is None else block.samples_before(first.start)
        return Stepped(last.lease, last.stop, before, first)

    def skip(self, samples: int) -> list[DrawnBatch]:
        """Give back the oldest batches, which have so many samples together, without a step.

        Raises
        ------
        UserError
            See `step`.
        """
        batches = list(self._oldest(samples, "sync.skip"))
        for _ in batches:
            self._drawn.popleft()
        return batches

    def _oldest(self, samples: int, call: str) -> Iterator[DrawnBatch]:
        left, sizes = samples, list[int]()
        for batch in self._drawn:
            if left <= 0:
                break
            yield batch
            sizes.append(batch.stop - batch.start)
            left -= sizes[-1]
        if left or samples <= 0:
            drawn = [batch.stop - batch.start for batch in self._drawn]
            if not drawn:
                raise UserError(
                    f"{call} with samples={samples}, and no batch of the job is drawn: make the loader with "
                    "batch_sampler=job.sampler(dataset, batch_size), and call sync.step once for a batch"
                )
            held = ", ".join(map(str, drawn[: len(sizes) + 1])) or "none"
            raise UserError(
                f"{call} with samples={samples}, and the batches that are drawn and not stepped have {held}: give the "
                "samples of whole batches, in the order of the loader"
            )
