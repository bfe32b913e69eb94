"""Rows of a run's tables in its newest snapshot set. Nothing else outside of the shards reads them there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from dbelief.checkpoint.set_storage import LocalSets
from dbelief.checkpoint.shard_file import StoredSegment, read_segments
from dbelief.errors import CorruptSnapshot, UserError
from dbelief.job import Job, load_job
from dbelief.rundir.result import SnapshotSource, newest_set
from dbelief.sparse.table import SparseTable, number_tables, rows_name


class BucketRows(NamedTuple):
    """Rows of one bucket, without the rule's state.

    Attributes
    ----------
    number
        Of the bucket in its table, from 0.
    keys
        (n,) int64, strictly rising.
    rows
        (n, width) float32.
    """

    number: int
    keys: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class SavedRows:
    """Rows of a run's tables in a valid snapshot set.

    Attributes
    ----------
    tables
        Of the job, in its order.
    """

    job: Job
    source: SnapshotSource
    tables: tuple[SparseTable, ...]

    @classmethod
    def newest(cls, run: Path) -> Self:
        """Those of a run's newest valid set. Cost: reads all of it, to verify its checksums.

        Raises
        ------
        UserError, RuntimeFailure
            It is no run, its job has no tables, or it has no valid set.
        """
        job = load_job(run / "job.yaml")
        if not job.tables:
            raise UserError(f"{run}: job {job.name} has no tables")
        if not LocalSets(run / "snapshots").complete():
            raise UserError(f"{run}: holds no complete snapshot set, and rows of tables are in these alone")
        source = newest_set(run, job)
        dense = source.layout.segments(source.nominal_length)
        return cls(job, source, number_tables(job.tables, job.seed, len(dense)))

    def buckets(self, table: SparseTable) -> Iterator[BucketRows]:
        """Every bucket of a table once, in no defined order. Memory: one, with its state, and a copy of its rows.

        Raises
        ------
        SnapshotError
            The set is damaged, or has rows of another form than the job's table.
        """
        folder, rule = self.source.folder, self.job.strategy.at_shards.name
        spans = table.spans(self.source.layout.size)
        for stored in read_segments(folder, folder.name, self.job.name, rule, spans):
            yield _rows_of(table, stored, folder)

    def about(self, table: SparseTable) -> dict[str, str]:
        """What a file of a table's rows says of them: what initial rows follow from, and their set."""
        return {
            "table": table.name,
            "width": str(table.width),
            "keys": self.job.tables[table.name].keys,
            "buckets": str(table.count),
            "salt": str(table.salt),
            "limit": repr(table.limit),
            "job": self.job.name,
            "set": self.source.folder.name,
            "samples": str(self.source.samples),
        }


def _rows_of(table: SparseTable, stored: StoredSegment, folder: Path) -> BucketRows:
    """A bucket's rows, by rising key."""
    prefix = rows_name(table.width, "")
    found = [values for name, values in stored.arrays.items() if name.startswith(prefix)]
    if len(found) != 1 or "keys" not in stored.arrays:
        held = ", ".join(sorted(stored.arrays)) or "nothing"
        raise CorruptSnapshot(
            f"{folder}: segment {stored.span.index} has {held}, and table {table.name!r} has {prefix}its rule"
        )
    keys = stored.arrays["keys"].view(np.int64)
    stride = found[0].size // keys.size if keys.size else table.width
    order = np.argsort(keys)
    rows = found[0].reshape(keys.size, stride)[:, : table.width][order]
    return BucketRows(stored.span.index - table.first, keys[order], np.ascontiguousarray(rows))
