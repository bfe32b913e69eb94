"""A batch sampler over leased samples: for `torch.utils.data.DataLoader(dataset, batch_sampler=...)`, or any loop.

A data loader with processes of its own draws ahead of the loop, on the loop's thread: the sampler must not wait for
what only the loop's steps can bring. Then it raises StopIteration while batches are pending; the loader asks again
after each of them, and when all are stepped (`ahead`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sized
from enum import Enum
from typing import Any, NamedTuple, Protocol, Self

from dbelief.data import permutation
from dbelief.errors import DataError, UserError

from .ahead import end_unbegun, go_on_after_steps
from .drawn import DrawnBatch, DrawnBatches
from .main_guard import check_start_method
from .user_code import located


class Supply(Enum):
    """Outcome of a request for a lease."""

    RECEIVED = "received"
    LATER = "later"  # not now
    DRAINED = "drained"  # all samples are leased: only failures of other replicas bring more
    OVER = "over"


class Answer(NamedTuple):
    """Outcome of a request for a lease, and the seconds until the next request is due."""

    supply: Supply
    pause_s: float = 0.0


class Source(Protocol):
    """Where a sampler's leases come from.

    Attributes
    ----------
    drawn
        The account of this script.
    by_epoch
        Whether an iteration ends with an epoch.
    before_compute
        Called with a batch that was drawn and is computed next.
    settle
        Called at the end of the samples: waits for the exchange under way, and continues from what it brings.
    replica
        Number of this replica.
    unguarded
        See `unguarded_line`.
    """

    drawn: DrawnBatches
    by_epoch: bool
    before_compute: Callable[[DrawnBatch], None]
    settle: Callable[[], None]
    replica: int
    unguarded: int

    @property
    def lockstep(self) -> int | None:
        """Samples of a step where replicas wait for each other; None where they run free."""
        ...

    def request(self) -> Answer:
        """Request a lease."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait so long for samples; what has been acknowledged meanwhile is reported."""
        ...


class LeasedIndices(list[int]):
    """Indices of a batch.

    Attributes
    ----------
    key
        The job's seed, the replica, the lease and the position in it: what random choices for the batch depend on.
    """

    def __init__(self, indices: Iterable[int], key: tuple[int, ...]) -> None:
        super().__init__(indices)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        """Its class is kept on the way to a data loader's process."""
        return LeasedIndices, (list(self), self.key)


class LeasedBatchSampler:
    """Lists of indices into a dataset, of the samples that are leased to this script.

    Parameters
    ----------
    dataset
        Map-style: it has a length, and items by index.
    batch_size
        Samples in a batch; the last of a lease may have fewer.
    size
        Samples that the job's `data.train` gives.
    seed
        The job's, which determines each epoch's order.
    accumulate
        Batches whose gradients are accumulated for one step: they are drawn as one, and all of one lease. The last
        samples of a lease are as many batches, of fewer samples.

    Raises
    ------
    DataError
        The dataset has no length, or another one than the job says; the size of batches does not fit.
    """

    def __init__(
        self, dataset: Sized, batch_size: int, size: int, seed: int, source: Source, accumulate: int = 1
    ) -> None:
        if not hasattr(dataset, "__len__") or any(own.__name__ == "IterableDataset" for own in type(dataset).__mro__):
            raise DataError(
                f"{type(dataset).__name__} is a stream: samples are leased by index, and trained by another replica "
                "where one fails, which a stream cannot repeat; bring a map-style dataset, or give the stream named "
                "units that can be read again, for dbelief.torch.UnitDataset"
            )
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}, must be at least 1")
        if accumulate < 1:
            raise DataError(f"accumulate is {accumulate}, must be at least 1")
        if source.lockstep and source.lockstep % (batch_size * accumulate):
            times = f"{batch_size}, times accumulate {accumulate}," if accumulate > 1 else f"{batch_size},"
            raise DataError(
                f"batch_size is {times} must divide {source.lockstep}: replicas wait for each other after so many "
                "samples, strategy.batch, or of diloco strategy.batch times strategy.steps"
            )
        self.batch_size, self.accumulate = batch_size, accumulate
        self._dataset, self._size, self._seed, self._source = dataset, size, seed, source
        self.check_length()

    def __len__(self) -> int:
        """Batches of a whole epoch, over all replicas; this replica gets some of them."""
        return -(-self._size // (self.batch_size * self.accumulate)) * self.accumulate

    def __iter__(self) -> LeasedBatches:
        """Batches of leased samples, until the job needs no more; with `job.epochs`, until the epoch's end."""
        caller = sys._getframe(1).f_locals  # of `__init__` of a loader's iterator, or of a loop of the script
        iterator, loader = caller.get("self"), caller.get("loader")
        try:
            with located():
                self.check_length()
                if getattr(loader, "num_workers", 0):
                    if not getattr(loader, "in_order", True):
                        raise UserError("a loader with in_order=False: batches are stepped in the order of the sampler")
                    check_start_method(getattr(loader, "multiprocessing_context", None), self._source.unguarded)
        except UserError:
            end_unbegun(iterator)
            raise
        self._source.drawn.undraw_undelivered()
        batches = LeasedBatches(self, self._source, self._size, self._seed)
        if go_on_after_steps(iterator, batches):
            self._source.drawn.undelivered = lambda: (batches.drawn - batches.delivered) // self.accumulate
        return batches

    def check_length(self) -> None:
        """Check that the dataset has as many samples as the job says.

        Raises
        ------
        DataError
            It does not.
        """
        if len(self._dataset) != self._size:
            raise DataError(
                f"the dataset has {len(self._dataset):,} samples, and data.train in the job file says "
                f"{self._size:,}: all replicas draw from one order of so many, so its length may not change; where "
                f"it is that, write data.train: {len(self._dataset)}"
            )


class LeasedBatches:
    """One iteration of a sampler; after StopIteration it may go on, while batches are pending.

    Attributes
    ----------
    drawn, delivered
        Batches that it has given to its loader, and that the loader has delivered to the loop, as far as it says.
    """

    def __init__(self, sampler: LeasedBatchSampler, source: Source, size: int, seed: int) -> None:
        self._sampler, self._source, self._size, self._seed = sampler, source, size, seed
        self._epoch: int | None = None
        self._of_order = -1
        self._order = permutation(0, seed, 0)
        self._last = Answer(Supply.RECEIVED)
        self._parts: deque[LeasedIndices] = deque()  # of the last batch that was drawn
        self.drawn = self.delivered = 0

    def __iter__(self) -> Self:
        """The iteration itself."""
        return self

    def __next__(self) -> LeasedIndices:
        """The next batch.

        Raises
        ------
        DataError
            The dataset's length has changed.
        """
        with located():
            if not self._parts:
                self._draw()
            return self._parts.popleft()

    @property
    def ready(self) -> bool:
        """Whether a batch can be drawn without a request."""
        return bool(self._parts) or (self._source.drawn.undrawn > 0 and not self._ends_here())

    def _ends_here(self) -> bool:
        """Whether the iteration ends before the next sample, which is of another epoch."""
        return self._source.by_epoch and self._epoch is not None and self._source.drawn.epoch != self._epoch

    def _draw(self) -> None:
        source, drawn = self._source, self._source.drawn
        self._wait_for_samples()
        if self._ends_here():
            raise StopIteration
        self._epoch = drawn.epoch
        parts = self._sampler.accumulate
        batch = drawn.draw(self._sampler.batch_size * parts, parts)
        self.drawn += parts
        if drawn.pending == 1:
            source.before_compute(batch)
        if source.lockstep and drawn.open_leases <= 1 and self._last.supply is not Supply.DRAINED:
            # With the first batch of a lease: others may not wait here for a replica that has not asked for the next.
            self._last = source.request()
        start = batch.lease.start
        indices = self._indices(batch.lease.epoch, start + batch.start, start + batch.stop)
        for first, stop in _bounds(len(indices), parts):
            key = self._seed, source.replica, batch.lease.id, batch.start + first
            self._parts.append(LeasedIndices(indices[first:stop], key))

    def _wait_for_samples(self) -> None:
        source, drawn = self._source, self._source.drawn
        while not drawn.undrawn:
            self._last = source.request()
            if self._last.supply is Supply.RECEIVED:
                continue
            if self._last.supply is Supply.OVER and not drawn.pending:
                source.settle()  # what follows the loop sees the last exchange
            if self._last.supply is Supply.OVER or (drawn.pending and not self._may_wait()):
                raise StopIteration
            source.pause(self._last.pause_s)

    def _may_wait(self) -> bool:
        """Whether more samples may come without a step of the pending batches."""
        if self._last.supply is Supply.DRAINED:
            return False
        return self._source.lockstep is None or self._source.drawn.are_one_step(self._source.lockstep)

    def _indices(self, epoch: int, start: int, stop: int) -> list[int]:
        if epoch != self._of_order:
            self._sampler.check_length()
            self._of_order, self._order = epoch, permutation(self._size, self._seed, epoch)
        indices: list[int] = self._order[start:stop].tolist()
        return indices


def _bounds(samples: int, parts: int) -> list[tuple[int, int]]:
    """Where so many parts of a batch begin and stop. Fewer samples than parts are given again: none may be empty."""
    if samples < parts:
        return [(part % samples, part % samples + 1) for part in range(parts)]
    return [(samples * part // parts, samples * (part + 1) // parts) for part in range(parts)]
