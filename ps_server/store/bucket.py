"""A bucket of a table, as a segment: rows by key in place of vectors (decision 0028).

Ledger, versions, rounds, journal and snapshot views are those of `Segment`. A push's gradient is packed rows
(`dbelief.sparse.table`). Rows that no push has made read as their initial values, so that none are assigned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dbelief.checkpoint.row_changes import changes_of
from dbelief.core.absent import EVERYTHING, Ranges
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import PARAMETERS, Push
from dbelief.errors import Rejected
from dbelief.optim import Rule
from dbelief.process.runtime import runtime
from dbelief.sparse.table import SparseTable, pack, packed_mean, rises, rows_name, table_of, unpack

from ..tables.arena import Arena, RowArrays
from ..tables.eviction import Eviction
from ..tables.holdings import TableHoldings, total
from ..tables.row_history import RowHistory
from ..tables.step import form_of, step_rows
from .copy_on_write import SnapshotView
from .packed import Into
from .segment import Outcome, Segment

_STAMPS = (1 << 32) - 1


def new_bucket(span: SegmentSpan, tables: Mapping[SparseTable, Rule], **fields: Any) -> Bucket:
    """An empty bucket of the table that it belongs to, with the table's rule; `fields`: others of `Segment`."""
    table = table_of(list(tables), span.index)
    rule = tables[table]
    limits = table.limits.of_bucket(table.count)
    arena = Arena(form_of(rule, table.width), table.salt, table.initial, limits)
    own = {"span": span, "rule": rule, "lock_free": False, "eviction": Eviction(limits.recent, limits.ttl_s)}
    return Bucket(**fields | own, arena=arena, rate=table.rate)


def held(tables: Iterable[SparseTable], segments: Iterable[Segment]) -> dict[str, TableHoldings]:
    """By name, what these segments hold of each table. Cost: a call a bucket; no lock is taken."""
    names, found = list(tables), dict[str, list[TableHoldings]]()
    for segment in segments:
        if isinstance(segment, Bucket):
            arena = segment.arena
            one = TableHoldings(arena.count, arena.nbytes, segment.evicted, arena.refused)
            found.setdefault(table_of(names, segment.span.index).name, []).append(one)
    return {name: total(parts) for name, parts in found.items()}


def warm_up(tables: Mapping[SparseTable, Rule]) -> None:
    """Compile the loops that buckets of these tables need, or load them from the cache: no push waits for it."""
    for table in tables:
        (span,) = replace(table, first=0, count=1).spans(0)
        bucket = new_bucket(span, {replace(table, first=0): tables[table]})
        bucket.check(pack(one := np.zeros(1, np.int64), table.initial(one)), 0)
        bucket._step(pack(one, np.zeros((1, table.width), np.float32)), np.float32(0))
        bucket.read(one)


@dataclass
class Bucket(Segment):
    """One bucket; every method expects `lock` to be held.

    Attributes
    ----------
    arena
        Its rows. A row's stamp is the number of the last push with its key, modulo 2^32.
    eviction
        Which rows are due to be removed.
    evicted
        Rows removed in this incarnation.
    rate
        Learning rate of the table's rows.
    loaded
        False from `empty` on until it is loaded.
    history
        What sets have of its rows.
    """

    arena: Arena = field(kw_only=True)
    eviction: Eviction = field(kw_only=True)
    evicted: int = 0
    rate: float = field(kw_only=True)
    loaded: bool = True
    history: RowHistory = field(default_factory=RowHistory)

    @property
    def nbytes(self) -> int:
        """Bytes of its rows, their state and index."""
        return self.arena.nbytes

    def holds(self, vector: str) -> bool:
        """Whether it is the parameters, or an array of them: complete from the beginning, unless it is to be loaded."""
        return self.loaded and (vector == PARAMETERS or vector in self.parts()[0])

    def check(self, values: np.ndarray, offset: int, packed: bool = False) -> None:
        """See `Segment.check`."""
        if offset or values.size % (2 + self.arena.form.width):
            raise Rejected(f"segment {self.span.index}: {values.size} numbers at {offset} are no rows of its table")
        if not rises(unpack(values, self.arena.form.width)[0]):
            raise Rejected(f"segment {self.span.index}: keys of rows that are not strictly rising")

    def read(self, keys: np.ndarray, vector: str = PARAMETERS, into: Into | None = None) -> np.ndarray:
        """(n, width) float32 rows of (n,) int64 keys; see `Segment.read`."""
        width = self.arena.form.width
        return self.arena.read(keys, None if into is None else into(keys.size * width).reshape(-1, width))

    def assign(self, push: Push, values: np.ndarray, offset: int) -> Outcome:
        """Count a push of initial values, which brings no rows here."""
        if values.size or push.vector != PARAMETERS:
            raise Rejected(f"segment {self.span.index}: rows of a table are not assigned")
        if not self.ledger.expect(push):
            return Outcome.DUPLICATE
        self.ledger.record(push)
        return Outcome.APPLIED

    def add(self, push: Push, gradient: np.ndarray, ordered: bool) -> Outcome:
        """Refuse: a batch method has no tables."""
        raise Rejected(f"segment {self.span.index}: bundles are not added to a table")

    def received(self, push: Push) -> Push:
        """With the time of day, where rows are removed by their age."""
        return push if self.eviction.ttl_s is None else replace(push, received_s=int(runtime.wall()))

    def rate_of(self, push: Push) -> np.float32:
        """The table's own rate, by the push's factor."""
        return np.float32(self.rate * push.row_factor)

    def absent(self, push: Push, values: np.ndarray) -> Ranges:
        """All of it where nothing of the push took part, rows neither; a row that a push lacks has the gradient 0."""
        return EVERYTHING if push.absent == EVERYTHING and not values.size else ()

    def apply(
        self, push: Push, gradient: np.ndarray, offset: int, rate: np.float32, before: np.ndarray | None = None
    ) -> Outcome:
        """See `Segment.apply`. Memory for new rows is there before the push is counted."""
        if self.ledger.expect(push):
            self.arena.reserve(gradient.size // (2 + self.arena.form.width))
            self._at(push)
        return super().apply(push, gradient, offset, rate, before)

    def stage(self, push: Push, gradient: np.ndarray) -> Outcome:
        """See `Segment.stage`."""
        outcome = super().stage(push, gradient)
        if outcome is Outcome.STAGED:
            self._at(push)
        return outcome

    def _at(self, push: Push) -> None:
        self.eviction.clock_s = max(self.eviction.clock_s, push.received_s)

    def _step(
        self,
        gradient: np.ndarray,
        rate: np.float32,
        offset: int = 0,
        before: np.ndarray | None = None,
        absent: Ranges = (),
    ) -> None:
        if absent:
            self.version += 1
            return
        self._count()
        if gradient.size:
            self._preserve()
            keys, rows = unpack(gradient, self.arena.form.width)
            step_rows(self.arena, self.rule, keys, rows, rate, self.applied, self.applied & _STAMPS)
        if not self.eviction.limits:
            return
        self.eviction.pushed(self.applied)
        if (gone := self.eviction.due(self.arena.rows().stamps, self.applied)) is not None:
            self._preserve()
            self.history.removed(gone)
            self.evicted += self.arena.remove(gone).size

    def _mean(self, pushed: Sequence[tuple[np.ndarray, float, Ranges]]) -> tuple[np.ndarray, Ranges]:
        counted = [(packed, weight) for packed, weight, _ in pushed if weight]
        if not counted:
            return np.zeros(0, np.float32), EVERYTHING
        return packed_mean(self.arena.form.width, counted), ()

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Keys, stamps, rows with their state, and what the limits need, in the bits of float32; no state beside."""
        keys, stamps, numbers = (values.reshape(-1).view(np.float32) for values in self.arena.rows())
        arrays = {"keys": keys, "stamps": stamps, self._rows_name: numbers}
        if self.arena.counters is not None:
            arrays["counters"] = self.arena.counters.held.view(np.float32)
        if self.eviction.ttl_s is not None:
            arrays["times"] = self.eviction.saved().view(np.float32)
        return arrays, {}

    @property
    def _rows_name(self) -> str:
        """Name of the rows' array."""
        return rows_name(self.arena.form.width, self.rule.name)

    def set_parts(self, vectors: dict[str, np.ndarray], state: Mapping[str, np.ndarray]) -> None:
        """Hold these rows, as `parts` gave them. Cost: a copy, and the index."""
        self._load_arrays(vectors)

    def begin_snapshot(self) -> None:
        """See `Segment.begin_snapshot`; later sets may get what has changed since."""
        super().begin_snapshot()
        self.history.begin(self.applied, self.arena.count)

    def begin_changes(self) -> None:
        """Create a snapshot view of what has changed since the set that has all rows; of all rows without such a set.

        Cost: a pass over the stamps, and a copy of what has changed.
        """
        base = self.history.base
        self.begin_snapshot()
        if base is None:
            return
        assert self.snapshot_view is not None
        stored = self.snapshot_view.stored
        try:
            changed, updated, removed = base.changes(self.arena.rows().stamps, self.applied)
            arrays = changes_of(stored.arrays, changed, updated, removed)
        except MemoryError:  # the view of all rows needs none
            return
        self.history.end(None)
        base.named += changed.size + removed.size
        self.snapshot_view = SnapshotView(replace(stored, arrays=arrays, since=base.piece), copied=True)

    def empty(self) -> None:
        """Drop all rows until the bucket is loaded."""
        self._preserve()
        self.staged.clear()
        self.loaded = False
        self.arena.load(RowArrays(np.zeros(0, np.int64), np.zeros(0, np.uint32), self.arena.rows().numbers[:0]))

    def _preserve(self) -> None:
        """Preserve the rows for the snapshot view, before a write."""
        if self.snapshot_view is not None:
            self.before_write(*self.snapshot_view.stored.arrays.values())

    def _load_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        where, stride = f"segment {self.span.index}", self.arena.form.stride
        if missing := {"keys", "stamps", self._rows_name} - arrays.keys():
            found = ", ".join(sorted(arrays)) or "nothing"
            raise Rejected(f"{where}: its table has {min(missing)}, and what is to be loaded has {found}")
        keys, stamps, numbers = arrays["keys"], arrays["stamps"], arrays[self._rows_name]
        if keys.size % 2 or stamps.size != keys.size // 2 or numbers.size != stamps.size * stride:
            raise Rejected(f"{where}: {numbers.size} numbers and {stamps.size} stamps are not {keys.size // 2} rows")
        self.history.clear()
        self._preserve()
        rows = RowArrays(keys.view(np.int64), stamps.view(np.uint32), numbers.reshape(-1, stride))
        self.arena.load(rows)
        if self.arena.counters is not None:  # what has none was kept without this limit
            self.arena.counters.load(arrays.get("counters", numbers[:0]).view(np.uint8))
        if self.eviction.ttl_s is not None and "times" in arrays:
            self.eviction.load(arrays["times"].view(np.int64))
        self.loaded = True
