"""Rows of a job's tables, as one replica reads them: pulled when they are needed, or ahead, or kept for some steps.

A pull names the last clock that is computed from what it brings (`PullRequest.clock`): that of the batch, of the one
after it where rows are pulled ahead, and of the last one that may read them where they are kept. So a bound on
staleness holds for all of them as for any pull, and a job file must not say more steps than the bound has. With the
bound 0 rows of the next round are there when this one has ended, and not before: none are pulled ahead.

Rows that are read count for the staleness of a push as of the pull that brought them: of each bucket the oldest version
that the last read of it has used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

from dbelief.process.begun import Begun

from .row_cache import RowCache
from .table import SparseTable, number_tables

if TYPE_CHECKING:
    from dbelief.job import Job

Pulled = tuple[np.ndarray, np.ndarray]
"""(n, width) float32 rows, and (buckets,) int64 versions of the table's buckets; -1: none of it was read."""


class PullsRows(Protocol):
    """What rows are pulled by: `ShardedParameterClient`."""

    def pull_rows(
        self, wanted: Mapping[SparseTable, np.ndarray], versions: np.ndarray, clock: int = 0
    ) -> list[np.ndarray]:
        """See `ShardedParameterClient.pull_rows`; also while another thread pulls or pushes."""
        ...


class _Ahead(NamedTuple):
    """A pull ahead, begun in a step, for batches up to a clock."""

    table: SparseTable
    keys: np.ndarray
    step: int
    clock: int
    pulled: Begun[Pulled]


class TableReader:
    """Reads rows for one replica; for one thread.

    Parameters
    ----------
    versions
        (segments,) int64: those of the buckets that are read are overwritten; an attribute too.
    staleness
        The job's bound, in clocks; None: there is none.
    caches
        By table, what is kept of its rows.

    Attributes
    ----------
    clock
        Of the batch that the rows are for.
    """

    def __init__(
        self,
        parameters: PullsRows,
        tables: Sequence[SparseTable],
        versions: np.ndarray,
        staleness: int | None = None,
        caches: Mapping[str, RowCache] | None = None,
    ) -> None:
        self._parameters, self.versions, self._staleness = parameters, versions, staleness
        self._tables = {table.name: table for table in tables}
        self.caches: Mapping[str, RowCache] = caches or {}
        self._ahead: list[_Ahead] = []
        self._step = 0
        self.clock = 0

    @classmethod
    def of_job(cls, job: Job, parameters: PullsRows, dense: int, versions: np.ndarray | None = None) -> Self:
        """A reader of all tables of a job with so many `dense` segments."""
        tables = number_tables(job.tables, job.seed, dense)
        kept = [(table, job.tables[table.name].cache) for table in tables]
        caches = {table.name: RowCache(table, one.rows, one.age) for table, one in kept if one is not None}
        if versions is None:
            versions = np.full(dense + sum(table.count for table in tables), -1, np.int64)
        return cls(parameters, tables, versions, job.strategy.staleness, caches)

    def table(self, name: str) -> SparseTable:
        """A table of the job."""
        return self._tables[name]

    def read(self, table: SparseTable, keys: np.ndarray) -> np.ndarray:
        """(n, width) float32 rows of (n,) int64 keys, each once."""
        if (ahead := self._take_ahead(table, keys)) is not None:
            rows, versions = ahead.result()  # bounded: every call has a deadline
        elif (cache := self.caches.get(table.name)) is not None:
            rows, versions = self._read_kept(table, keys, cache)
        else:
            rows, versions = self._pull(table, keys, self.clock)
        self._note(table, versions)
        return rows

    def read_all(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of several tables by name, as of `read`; in one call of each shard, but for tables with a cache."""
        found = {name: self.read(self.table(name), keys) for name, keys in wanted.items() if name in self.caches}
        keys = {self.table(name): own for name, own in wanted.items() if name not in found}
        if keys:
            # A pull for a clock brings the versions of all buckets: those of rows that were kept are earlier.
            versions = np.full(self.versions.size, -1, np.int64)
            pulled = self._parameters.pull_rows(keys, versions, self.clock)
            for table, rows in zip(keys, pulled, strict=True):
                found[table.name] = rows
                self._note(table, versions[table.first : table.first + table.count])
        return found

    def prefetch(self, table: SparseTable, keys: np.ndarray) -> None:
        """Begin to pull rows that the next read of the same keys gets, in this step or the next one.

        They are as they were during this step, before its push: rows that it changes are one push of this replica
        older. Nothing is done with a staleness bound of 0.
        """
        if self._staleness != 0:
            clock = self._last_clock(1)
            pulled = Begun(lambda: self._pull(table, keys, clock), "prefetch")
            self._ahead.append(_Ahead(table, keys, self._step, clock, pulled))

    def pushed(self, table: SparseTable, keys: np.ndarray) -> None:
        """Drop what is kept of these keys, which are being pushed."""
        if (cache := self.caches.get(table.name)) is not None:
            cache.drop(keys)

    def stepped(self, clock: int) -> None:
        """Begin the next step, with this clock; what was pulled for the last one and not read is dropped."""
        self.clock, self._step = clock, self._step + 1
        self._ahead = [one for one in self._ahead if one.step + 1 >= self._step]

    def _note(self, table: SparseTable, versions: np.ndarray) -> None:
        """Overwrite the versions of the buckets that were read: (buckets,) int64."""
        np.copyto(self.versions[table.first : table.first + table.count], versions, where=versions >= 0)

    def _take_ahead(self, table: SparseTable, keys: np.ndarray) -> Begun[Pulled] | None:
        """The first pull ahead of these keys that may be read for this clock; it is read once."""
        for place, one in enumerate(self._ahead):
            if one.table is table and one.clock >= self.clock and np.array_equal(one.keys, keys):
                del self._ahead[place]
                return one.pulled
        return None

    def _read_kept(self, table: SparseTable, keys: np.ndarray, cache: RowCache) -> Pulled:
        rows, missing, kept = cache.read(keys, self._step, self.clock)
        if not missing.any():
            return rows, kept
        clock = self._last_clock(cache.age)
        rows[missing], pulled = self._pull(table, keys[missing], clock)
        cache.keep(keys[missing], rows[missing], pulled, self._step, clock)
        return rows, np.where(kept < 0, pulled, np.where(pulled < 0, kept, np.minimum(kept, pulled)))

    def _last_clock(self, steps: int) -> int:
        """Clock of the batch that is so many steps ahead; where there is no bound, clocks are not counted."""
        return self.clock + steps if self._staleness else self.clock

    def _pull(self, table: SparseTable, keys: np.ndarray, clock: int) -> Pulled:
        versions = np.full(self.versions.size, -1, np.int64)
        (rows,) = self._parameters.pull_rows({table: keys}, versions, clock)
        return rows, versions[table.first : table.first + table.count]
