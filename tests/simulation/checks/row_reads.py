"""Rows as replicas read them: pulled for the step, ahead, or kept from earlier ones.

`rows` compares each pull with the version that it names. Here each row that is read is one that the same process has
pulled, and that pull

* names no earlier clock than that of the read, so that the bound on staleness holds for it as for the pull (`lead`)
* was begun in this step; of rows pulled ahead in the step before, of kept ones at most their age ago
* is behind each push of this replica to the row, but for that of the step in which it is pulled ahead
* is of no older version than that which the reader names as the oldest
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.sparse.table import SparseTable
from dbelief.sparse.table_reader import TableReader
from tests.simulation.models.jobs import SimulatedJob
from tests.simulation.models.marks import Rows

_OLDEST = 8
"""Steps for which pulls are kept: more than any age."""


class _Pulled(NamedTuple):
    """Rows of one table, by key with the version of its bucket, pulled in a step for batches up to a clock."""

    step: int
    clock: int
    rows: dict[int, tuple[bytes, int]]


@dataclass
class _Replica:
    """One process: how many steps it has made, when it pushed to each row last, and what it has pulled, by table."""

    step: int = 0
    pushed: dict[tuple[str, int], int] = field(default_factory=dict)
    pulled: defaultdict[str, list[_Pulled]] = field(default_factory=lambda: defaultdict(list))


class ReadWatch:
    """Checks the rows that replicas read.

    Parameters
    ----------
    violation
        Called with the text of each violation.
    process
        Number of the process that runs.
    buckets_of
        By bucket, the places of some keys of a table.
    """

    def __init__(
        self,
        job: SimulatedJob,
        violation: Callable[[str], None],
        process: Callable[[], int],
        buckets_of: Callable[[SparseTable, np.ndarray], Mapping[int, np.ndarray]],
    ) -> None:
        self._violation, self._process, self._buckets_of = violation, process, buckets_of
        self._bounded = "staleness" in job.strategy
        self._ahead = {table.name for table in job.tables if table.ahead}
        self._replicas: defaultdict[int, _Replica] = defaultdict(_Replica)

    @property
    def _replica(self) -> _Replica:
        return self._replicas[self._process()]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all readers within the `with` block."""
        pull, read, read_all, stepped = (
            ShardedParameterClient.pull_rows,
            TableReader.read,
            TableReader.read_all,
            TableReader.stepped,
        )

        def pulls(client: Any, wanted: Mapping[SparseTable, np.ndarray], versions: Any, clock: int = 0) -> Any:
            replica = self._replica
            step = replica.step
            found = pull(client, wanted, versions, clock)
            self._pulled(replica, step, clock, wanted, versions, found)
            return found

        def reads(reader: TableReader, table: SparseTable, keys: np.ndarray) -> np.ndarray:
            found = read(reader, table, keys)
            self._check(reader, table, keys, found)
            return found

        def reads_all(reader: TableReader, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            found = read_all(reader, wanted)
            for name, keys in wanted.items():
                self._check(reader, reader.table(name), keys, found[name])
            return found

        def steps(reader: TableReader, clock: int) -> None:
            stepped(reader, clock)
            self._replica.step += 1

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(ShardedParameterClient, "pull_rows", pulls))
            stack.enter_context(mock.patch.object(TableReader, "read", reads))
            stack.enter_context(mock.patch.object(TableReader, "read_all", reads_all))
            stack.enter_context(mock.patch.object(TableReader, "stepped", steps))
            yield

    def pushed(self, rows: Mapping[str, Rows]) -> None:
        """Record the rows that a process pushes to."""
        replica = self._replica
        replica.pushed |= {(name, key): replica.step for name, (keys, _) in rows.items() for key in keys.tolist()}

    def _pulled(
        self,
        replica: _Replica,
        step: int,
        clock: int,
        wanted: Mapping[SparseTable, np.ndarray],
        versions: np.ndarray,
        found: Sequence[np.ndarray],
    ) -> None:
        for (table, keys), rows in zip(wanted.items(), found, strict=True):
            of_key: dict[int, tuple[bytes, int]] = {}
            for index, places in self._buckets_of(table, keys).items():
                version = int(versions[index])
                of_key |= {int(keys[place]): (rows[place].tobytes(), version) for place in places.tolist()}
            before = [one for one in replica.pulled[table.name] if one.step + _OLDEST >= step]
            replica.pulled[table.name] = [*before, _Pulled(step, clock, of_key)]

    def _check(self, reader: TableReader, table: SparseTable, keys: np.ndarray, found: np.ndarray) -> None:
        replica, cache = self._replica, reader.caches.get(table.name)
        age = max(cache.age if cache is not None else 0, int(table.name in self._ahead))
        due = [
            one
            for one in replica.pulled[table.name]
            if one.step + age >= replica.step and (one.clock >= reader.clock or not self._bounded)
        ]
        for index, places in self._buckets_of(table, keys).items():
            oldest = int(reader.versions[index])
            for place in places.tolist():
                key, row = int(keys[place]), found[place].tobytes()
                if not any(self._may_be(replica, table, one, key, row, oldest) for one in due):
                    self._violation(
                        f"{table.name}: key {key} of bucket {index} is read for clock {reader.clock} as "
                        f"{found[place].tolist()}, of version {oldest} or later, and no pull of the last {age + 1} "
                        "steps may bring that"
                    )
                    return

    def _may_be(
        self, replica: _Replica, table: SparseTable, pulled: _Pulled, key: int, row: bytes, oldest: int
    ) -> bool:
        held, version = pulled.rows.get(key, (b"", -1))
        pushed = replica.pushed.get((table.name, key), -1)
        behind = pushed < pulled.step or (table.name in self._ahead and pushed == pulled.step)
        return held == row and version >= oldest and behind
