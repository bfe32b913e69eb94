"""Reference of a table, independent of it: the bucket of a key, its row at first, and its row after each push.

Hashes are those of splitmix64, in Python's whole numbers, and the rules are formulas in float64:

    sgd           w <- w - rate g
    row-adagrad   A <- A + mean(g^2) ;  w <- w - rate g / sqrt(A)
    lazy-adam     m <- b m + (1 - b) g ;  v <- c v + (1 - c) g^2
                  w <- w - rate m sqrt(1 - c^t) / ((1 - b^t) (sqrt(v) + eps)) ;  t: pushes to the bucket

A key gets its row at a push by two counters of bytes (`Waiting`), while there is room. Rows are in the order in which
they were made. Of more than `lru` rows those stay that were pushed last, by the number of the push and then by order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dbelief.core.push import Pusher
from dbelief.job.tables import TableSection
from dbelief.sparse.table import SparseTable

ALL = (1 << 64) - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
COUNTERS = 0xD6E8FEB86659FD93, 0xA3B195354A39B70D
FEWEST_COUNTERS = 1024

Made = tuple[int, Pusher, int]
"""A push: the run that it belongs to, its pusher and its number."""


def _mixed(x: int) -> int:
    x = (x ^ (x >> 30)) * FIRST & ALL
    x = (x ^ (x >> 27)) * SECOND & ALL
    return x ^ (x >> 31)


def _words(key: int, salt: int, count: int) -> Iterator[int]:
    start = _mixed((key + salt) & ALL)
    return (_mixed((start + j * GOLDEN) & ALL) for j in range(count))


@dataclass(frozen=True, eq=False)
class Contents:
    """What a bucket has in one version.

    Attributes
    ----------
    pushes
        All that it has.
    counts
        How many of each pusher, by its run.
    steps
        How often its rule has stepped.
    keys, stamps, numbers
        (n,) int64 keys and int64 steps of their last push, and (n, stride) float64 rows with the rule's state, in the
        order in which rows were made.
    waiting
        Counters of keys without a row; empty without `admit`.
    """

    pushes: frozenset[Made] = frozenset()
    counts: Mapping[tuple[int, Pusher], int] = field(default_factory=dict)
    steps: int = 0
    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    stamps: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    numbers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    waiting: bytes = b""

    @cached_property
    def _places(self) -> dict[int, int]:
        return {key: place for place, key in enumerate(self.keys.tolist())}

    def find(self, keys: np.ndarray) -> np.ndarray:
        """(n,) int64 places of the rows of (n,) keys; -1 where a key has none."""
        return np.array([self._places.get(key, -1) for key in keys.tolist()], np.int64)


class TableReference:
    """One table.

    Parameters
    ----------
    section
        Its section of the job file.
    """

    def __init__(self, table: SparseTable, section: TableSection) -> None:
        self.table, self._rule = table, section.rule.model_dump()
        extra = {"sgd": 0, "row-adagrad": 1, "lazy-adam": 2 * table.width}
        self.stride = table.width + extra[self._rule["name"]]
        self._most = -(-(section.most_rows or ALL) // table.count)
        self._lru = -(-section.evict.lru // table.count) if section.evict and section.evict.lru else ALL
        self._after, counters = (section.admit.after, section.admit.counters) if section.admit else (1, 1)
        self._counters = max(FEWEST_COUNTERS, 2 ** math.ceil(math.log2(-(-counters // table.count))))
        self._hashes: dict[int, int] = {}
        self._initial: dict[int, np.ndarray] = {}

    def _hash(self, key: int) -> int:
        if key not in self._hashes:
            (self._hashes[key],) = _words(key, self.table.salt, 1)
        return self._hashes[key]

    def bucket_of(self, key: int) -> int:
        """Index of the bucket of a key."""
        return self.table.first + ((self._hash(key) >> 32) * self.table.count >> 32)

    def split(self, keys: np.ndarray) -> dict[int, np.ndarray]:
        """By bucket, places of its keys."""
        own = np.array([self.bucket_of(key) for key in keys.tolist()], np.int64)
        return {index: np.flatnonzero(own == index) for index in np.unique(own).tolist()}

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """(n, stride) rows of keys that have none."""
        rows = np.zeros((keys.size, self.stride))
        for row, key in zip(rows, keys.tolist(), strict=True):
            if key not in self._initial:
                words = _words(key, self.table.salt ^ FIRST, self.table.width)
                self._initial[key] = np.array([(word >> 40) * 2.0**-23 - 1 for word in words]) * self.table.limit
            row[: self.table.width] = self._initial[key]
        return rows

    def rows(self, contents: Contents, keys: np.ndarray) -> np.ndarray:
        """(n, width) rows of (n,) keys, as a read returns them."""
        rows, places = self._new(keys), contents.find(keys)
        rows[places >= 0] = contents.numbers.reshape(-1, self.stride)[places[places >= 0]]
        return rows[:, : self.table.width]

    def after(
        self, before: Contents, pushed: Mapping[Made, float], keys: np.ndarray, gradients: np.ndarray
    ) -> Contents:
        """Contents after a step by (n,) rising keys and (n, width) gradients of some pushes."""
        counts = dict(before.counts)
        for run, pusher, _ in pushed:
            counts[run, pusher] = counts.get((run, pusher), 0) + 1
        pushes, steps = before.pushes | pushed.keys(), before.steps + 1
        now = replace(before, pushes=pushes, counts=counts, steps=steps)
        if not keys.size:
            return now
        due, waiting = self._due(before, keys[before.find(keys) < 0])
        made = due[: max(0, self._most - before.keys.size)]
        numbers = np.concatenate([before.numbers.reshape(-1, self.stride), self._new(made)])
        stamps = np.append(before.stamps, np.zeros(made.size, np.int64))
        now = replace(now, keys=np.append(before.keys, made), stamps=stamps, numbers=numbers, waiting=waiting)
        places = now.find(keys)
        with_row, places = places >= 0, places[places >= 0]
        rows = numbers[places]
        self._step(rows, gradients[with_row].astype(np.float64), steps)
        numbers[places], stamps[places] = rows, steps
        return self._evicted(now)

    def _due(self, before: Contents, keys: np.ndarray) -> tuple[np.ndarray, bytes]:
        """Which of the keys without a row get one at a push with them, and the counters behind it."""
        if self._after == 1:
            return keys, b""
        counters, due = bytearray(before.waiting or bytes(self._counters)), list[int]()
        for key in keys.tolist():
            own = [(self._hash(key) * factor & ALL) >> 32 & self._counters - 1 for factor in COUNTERS]
            count = min(counters[at] for at in own) + 1
            if count >= self._after:
                due.append(key)
                continue
            for at in own:
                counters[at] = max(counters[at], count)
        if 2 * (len(counters) - counters.count(0)) > len(counters):
            counters = bytearray(one // 2 for one in counters)
        return np.array(due, np.int64), bytes(counters)

    def _evicted(self, now: Contents) -> Contents:
        if now.keys.size <= self._lru:
            return now
        stay = max(1, self._lru - self._lru // 8)
        kept = np.sort(np.lexsort((np.arange(now.keys.size), now.stamps))[-stay:])
        return replace(now, keys=now.keys[kept], stamps=now.stamps[kept], numbers=now.numbers[kept])

    def _step(self, rows: np.ndarray, g: np.ndarray, t: int) -> None:
        width, rate, rule = self.table.width, self.table.rate, self._rule
        w = rows[:, :width]
        if rule["name"] == "sgd":
            w -= rate * g
        elif rule["name"] == "row-adagrad":
            rows[:, width] += (g**2).mean(axis=1)
            w -= rate * g / np.sqrt(rows[:, width, None])
        else:
            m, v = rows[:, width : 2 * width], rows[:, 2 * width :]
            b, c = rule["beta1"], rule["beta2"]
            m[:], v[:] = b * m + (1 - b) * g, c * v + (1 - c) * g**2
            w -= rate * m * np.sqrt(1 - c**t) / ((1 - b**t) * (np.sqrt(v) + rule["eps"]))
