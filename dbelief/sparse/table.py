"""A table of rows by key: how it is cut into buckets, and how rows are packed into the numbers of a push.

A bucket is a row of the segment table, of kind `TABLE` and without a place in the flat vector. What a push brings to a
bucket is one float32 array of n (2 + width) numbers: n int64 keys, strictly rising, in the bits of the first 2 n, then
n rows. So it is staged, recorded, sent and copied like any gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.core.layout import Kind, SegmentSpan
from dbelief.errors import Rejected

from .row_hash import MOST_BUCKETS, buckets, hashes, table_salt, uniform_rows
from .row_limits import NO_LIMITS, RowLimits

if TYPE_CHECKING:
    from dbelief.job.tables import TableSection  # a shard does not import the job file's module


u32, u64 = np.uint32, np.uint64
Order = np.ndarray | slice
IN_ORDER = slice(None)
MOST_KEYS = 1 << 20
"""Keys of one bucket in a pull: their rows are made in one piece."""


@dataclass(frozen=True)
class SparseTable:
    """A table of a job.

    Attributes
    ----------
    width
        Numbers of a row.
    salt
        Of its hashes: `table_salt`.
    limit
        Initial rows are uniform in [-limit, limit).
    rate
        Learning rate of its rows.
    first, count
        Index of its first bucket in the segment table, and its buckets, at most `MOST_BUCKETS`.
    limits
        When a key gets a row, and when a row is removed.
    push, pull
        Codec of its rows in pushes and in pulls, by name; `pull` None: that of the vector.
    """

    name: str
    width: int
    salt: int
    limit: float
    rate: float
    first: int
    count: int
    limits: RowLimits = NO_LIMITS
    push: str = "fp32"
    pull: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_BUCKETS:
            raise ValueError(f"table {self.name!r}: {self.count} buckets, must be 1 to {MOST_BUCKETS}")
        if self.width < 1 or not math.isfinite(self.limit):
            raise ValueError(f"table {self.name!r}: rows of {self.width} numbers within {self.limit:g}")

    @property
    def indices(self) -> range:
        """Of its buckets in the segment table."""
        return range(self.first, self.first + self.count)

    def spans(self, size: int) -> list[SegmentSpan]:
        """Rows of the segment table, behind a flat vector of `size` numbers."""
        return [SegmentSpan(self.first + number, size, 0, Kind.TABLE) for number in range(self.count)]

    def initial(self, keys: np.ndarray) -> np.ndarray:
        """(n, width) float32 initial rows of (n,) int64 keys."""
        return uniform_rows(keys, self.salt, self.width, self.limit)

    def split(self, keys: np.ndarray) -> tuple[np.ndarray, list[tuple[int, slice]]]:
        """Sort keys by bucket, and in each by key.

        Returns
        -------
        order
            (n,) int64: position of each sorted key in (n,) `keys`.
        parts
            Index of each bucket that has some, and their range in the order.
        """
        order, parts = self.runs(keys)
        return np.arange(keys.size)[order], parts

    def runs(self, keys: np.ndarray) -> tuple[Order, list[tuple[int, slice]]]:
        """As `split`; the order is `IN_ORDER`, which copies nothing, where the keys are sorted and distinct."""
        own, edges = buckets(hashes(keys, self.salt), self.count), np.empty(self.count + 1, np.int64)
        order: Order = IN_ORDER
        if not in_order(keys, own, edges):
            by_key = np.argsort(keys)
            order = by_key[np.argsort(own[by_key], kind="stable")]  # of 16 bits each: NumPy sorts them by radix
            edges = np.searchsorted(own[order], np.arange(self.count + 1))
        ranges = enumerate(itertools.starmap(slice, pairwise(edges.tolist())), self.first)
        return order, [(index, own) for index, own in ranges if own.start < own.stop]

    def pack(self, keys: np.ndarray, rows: np.ndarray) -> dict[int, np.ndarray]:
        """By bucket, packed rows of (n,) int64 keys, each once, and (n, width) float32: views of one array.

        Cost: a pass over the keys and one over the rows, and a sort where the keys are not as `split` sorts them.
        """
        order, parts = self.runs(keys)
        edges = np.array([0, *(own.stop for _, own in parts)], np.int64)
        each, packed = 2 + self.width, np.empty(keys.size * (2 + self.width), np.float32)
        places = np.zeros(0, np.int64) if isinstance(order, slice) else order
        given = np.ascontiguousarray(keys).view(u32), np.ascontiguousarray(rows, np.float32).reshape(-1).view(u32)
        pack_runs(*given, places, edges, packed.view(u32))
        return {index: packed[each * own.start : each * own.stop] for index, own in parts}


def number_tables(sections: Mapping[str, TableSection], seed: int, first: int) -> tuple[SparseTable, ...]:
    """The tables of a job with this seed, in their order; `first`: number of its dense segments."""
    tables = []
    for name, one in sections.items():
        salt = table_salt(seed, name)
        form = one.limit, one.rule.rate, first, one.buckets, _limits(one), one.push, one.pull
        tables.append(SparseTable(name, one.width, salt, *form))
        first += one.buckets
    return tuple(tables)


def _limits(section: TableSection) -> RowLimits:
    after, counters = (section.admit.after, section.admit.counters) if section.admit else (1, 0)
    recent, ttl_s = (section.evict.lru, section.evict.ttl) if section.evict else (None, None)
    return RowLimits(after, counters, section.most_rows, recent, None if ttl_s is None else round(ttl_s))


def assign_buckets(tables: Sequence[SparseTable], shards: int) -> list[list[int]]:
    """Indices of the buckets of each shard: of every table an equal share, to one bucket, each a run."""
    owned: list[list[int]] = [[] for _ in range(shards)]
    for table in tables:
        for number in range(table.count):
            owned[number * shards // table.count].append(table.first + number)
    return owned


def table_of(tables: Sequence[SparseTable], index: int) -> SparseTable:
    """The table that a bucket belongs to, by its index in the segment table."""
    for table in tables:
        if table.first <= index < table.first + table.count:
            return table
    raise Rejected(f"segment {index} is a bucket of no table of the job")


def rows_name(width: int, rule: str) -> str:
    """Name of a bucket's rows in a snapshot set: those of another width or rule have another."""
    return f"rows of {width} by {rule}"


def pack(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """One array of (n,) int64 keys and (n, width) float32 rows."""
    packed = np.empty(2 * keys.size + rows.size, np.float32)
    packed[: 2 * keys.size].view(np.int64)[:] = keys
    packed[2 * keys.size :] = rows.reshape(-1)
    return packed


def unpack(packed: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) int64 keys and (n, width) float32 rows, as views of a packed array of a length that fits."""
    count = packed.size // (2 + width)
    return packed[: 2 * count].view(np.int64), packed[2 * count :].reshape(count, width)


@kernel("read uint32", "read uint32", "read int64", "read int64", "write uint32", "void")
def pack_runs(keys: np.ndarray, rows: np.ndarray, order: np.ndarray, edges: np.ndarray, packed: np.ndarray) -> None:
    """Pack each run of ordered keys, from an edge to the next, with its rows; all as their bits.

    `order`: places of the ordered keys among those that are given; empty: they are ordered.
    """
    width = rows.size // max(1, keys.size // 2)
    for run in range(edges.size - 1):
        first, count = edges[run], edges[run + 1] - edges[run]
        at = u64(first * (2 + width))
        to = u64(at + u64(2 * count))
        if order.size:
            for i in range(count):
                own = order[first + i]
                key, row = u64(2 * own), u64(width * own)
                packed[at], packed[u64(at + u64(1))] = keys[key], keys[u64(key + u64(1))]
                at = u64(at + u64(2))
                for j in range(width):
                    packed[u64(to + u64(j))] = rows[u64(row + u64(j))]
                to = u64(to + u64(width))
        else:
            key, row = u64(2 * first), u64(width * first)
            for i in range(2 * count):
                packed[u64(at + u64(i))] = keys[u64(key + u64(i))]
            for i in range(width * count):
                packed[u64(to + u64(i))] = rows[u64(row + u64(i))]


@kernel("read int64", "read uint16", "write int64", "boolean")
def in_order(keys: np.ndarray, own: np.ndarray, edges: np.ndarray) -> bool:
    """Whether keys are sorted by bucket, and in each rise strictly; then `edges` is where each bucket's begin.

    `own`: number of each key's bucket, of `edges.size - 1`.
    """
    last = -1
    for i in range(keys.size):
        bucket = int(own[i])
        if bucket < last or (bucket == last and keys[i] <= keys[i - 1]):
            return False
        while last < bucket:
            last += 1
            edges[last] = i
    while last < edges.size - 1:
        last += 1
        edges[last] = keys.size
    return True


@kernel("read int64", "boolean")
def rises(keys: np.ndarray) -> bool:
    """Whether (n,) int64 keys rise strictly."""
    rising = True
    for i in range(1, keys.size):
        rising &= keys[i] > keys[i - 1]
    return rising


def packed_mean(width: int, pushed: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """Packed mean of packed rows, with a weight each: a row that one lacks counts as 0. Summed in this order."""
    total = sum(weight for _, weight in pushed)
    parts = [(*unpack(packed, width), np.float32(weight / total)) for packed, weight in pushed if weight]
    keys = np.unique(np.concatenate([own for own, _, _ in parts]))
    mean = np.zeros((keys.size, width), np.float32)
    for own, rows, weight in parts:
        mean[np.searchsorted(keys, own)] += rows * weight
    return pack(keys, mean)
