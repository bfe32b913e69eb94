"""Rows of a job's tables: their memory on the shards, and what the rows of a mini-batch take of the wire.

Hashes spread rows evenly over a table's buckets, and shards hold equal shares of these. Not counted: the copy of a
bucket while its arrays grow, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dbelief.arrays.row_index import MOST_ROWS, slots_for
from dbelief.errors import UserError
from dbelief.job import Job, ScriptModel
from dbelief.job.tables import TableSection
from dbelief.optim import make_row_rule
from dbelief.optim.rules.row_adagrad import RowAdagrad
from dbelief.sparse.row_form import RowForm
from dbelief.sparse.table import SparseTable, number_tables

from .memory import PROCESS, SET, machine_bytes, shard_memory
from .shard_traffic import NO_ROWS, RowTraffic

GIB = 1 << 30
MILLION = 1_000_000
"""Rows that memory is given for where the number of rows is not known."""
ROWS, INDEX, COUNTERS = "rows with their state", "index of keys", "counters of keys without a row"


@dataclass(frozen=True)
class PlannedTable:
    """One table.

    Attributes
    ----------
    state
        Numbers of the rule's state beside each row.
    rows
        As many as are planned for, or as the job allows; None: not known, and `memory` is that of a million.
    memory
        Bytes of all buckets by purpose, with a copy of them while a snapshot set is written.
    keys
        Distinct ones of a replica's mini-batch; None: not known.
    traffic
        Of these keys.
    """

    name: str
    width: int
    state: int
    buckets: int
    rows: int | None
    memory: Mapping[str, int]
    keys: int | None = None
    traffic: RowTraffic = NO_ROWS

    @property
    def row_bytes(self) -> float:
        """Bytes of a row with its key, its stamp, its state and its part of the index."""
        return (self.memory[ROWS] + self.memory[INDEX]) / (self.rows or MILLION)

    @property
    def bytes(self) -> int:
        """Total bytes."""
        return sum(self.memory.values())

    def on_shards(self, shards: int, shard: int = 0) -> int:
        """Bytes of a shard's share, of so many shards: the first one has the most buckets of every table."""
        first, stop = (-(-place * self.buckets // shards) for place in (shard, shard + 1))  # as of `assign_buckets`
        return (stop - first) * -(-self.bytes // self.buckets)


@dataclass(frozen=True)
class PlannedRows:
    """All tables of a job.

    Attributes
    ----------
    shard_bytes
        Of the fullest shard: rows, its share of the parameters, and the process; None where rows are not known.
    machine_bytes
        That a shard's machine has.
    shards_enough
        The smallest number of shards, each on a machine of its own, that have room; None: not known, or there is none.
    """

    tables: Sequence[PlannedTable]
    shard_bytes: int | None
    machine_bytes: int
    shards_enough: int | None

    @property
    def traffic(self) -> RowTraffic:
        """Of a replica's mini-batch, in all tables."""
        return sum((table.traffic for table in self.tables), NO_ROWS)

    def described(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        more = ({"row_bytes": table.row_bytes, "bytes": table.bytes} for table in self.tables)
        tables = [asdict(table) | own for table, own in zip(self.tables, more, strict=True)]
        return {**asdict(self), "tables": tables, "traffic": asdict(self.traffic)}


def plan_rows(
    job: Job, parameters: int, rows: Mapping[str, int], keys: Mapping[str, int], memory_gib: float | None = None
) -> PlannedRows:
    """Plan the tables of a job with so many trained parameters.

    Parameters
    ----------
    rows, keys
        By table: its rows, of which no more are counted than the job allows; and distinct keys of a mini-batch.
    memory_gib
        GiB that the machine of a shard has; None: as much as this one.

    Raises
    ------
    UserError
        The job has no such table, or its buckets have no room for so many rows.
    """
    for option, given in (("--rows", rows), ("--keys", keys)):
        for name in given:
            if name not in job.tables:
                raise UserError(f"{option}: the job has no table {name!r}; tables: {', '.join(job.tables) or 'none'}")
    numbered = number_tables(job.tables, job.seed, 0)
    tables = [
        _planned(job, table, section, rows.get(table.name), keys.get(table.name))
        for table, section in zip(numbered, job.tables.values(), strict=True)
    ]
    if not isinstance(job.model, ScriptModel):
        tables = _pulled_together(job, tables)
    room = machine_bytes() if memory_gib is None else int(memory_gib * GIB)
    if any(table.rows is None for table in tables):
        return PlannedRows(tables, None, room, None)

    def needs(shards: int) -> int:
        dense = sum(shard_memory(job, -(-parameters // shards)).values())
        return PROCESS["shard"] + dense + sum(table.on_shards(shards) for table in tables)

    most = max((table.buckets for table in tables), default=1)
    enough = next((shards for shards in range(1, most + 1) if needs(shards) <= room), None)
    return PlannedRows(tables, needs(job.shards), room, enough)


def _pulled_together(job: Job, tables: Sequence[PlannedTable]) -> list[PlannedTable]:
    """The same tables where layers read them: all without a cache are pulled at once, which counts for the first."""
    together = [table.name for table in tables if table.keys and job.tables[table.name].cache is None]
    no_pull = {name: replace(table.traffic, pulls=0) for table in tables if (name := table.name) in together[1:]}
    return [replace(table, traffic=no_pull.get(table.name, table.traffic)) for table in tables]


def _planned(job: Job, table: SparseTable, section: TableSection, rows: int | None, keys: int | None) -> PlannedTable:
    rule = make_row_rule(section.rule.name, section.rule.model_dump(exclude={"name", "rate"}))
    form = RowForm.of(table.width, rule.state, isinstance(rule, RowAdagrad))
    if rows is not None and rows > MOST_ROWS * table.count:
        raise UserError(
            f"--rows: table {table.name!r} has {table.count} buckets, and {rows:,} rows need {-(-rows // MOST_ROWS)}: "
            f"one has at most {MOST_ROWS:,}"
        )
    limits = [one for one in (rows, table.limits.most, table.limits.recent) if one is not None]
    planned = min(limits, default=None)
    own, pushed = (-(-count // table.count) for count in (planned or MILLION, keys or 0))
    index = form.nbytes(0, slots_for(own + pushed))  # a push first makes room for all its keys
    counters = table.limits.of_bucket(table.count).counters if table.limits.after > 1 else 0
    held = {ROWS: form.nbytes(own, slots=0), INDEX: index, COUNTERS: counters}
    memory = {name: table.count * size for name, size in {**held, SET: held[ROWS] + counters}.items()}
    traffic = RowTraffic.of(job.wire, table, keys) if keys else NO_ROWS
    return PlannedTable(table.name, table.width, form.stride - form.width, table.count, planned, memory, keys, traffic)
