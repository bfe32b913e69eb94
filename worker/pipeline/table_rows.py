"""Rows of tables in a replica's steps: read for a mini-batch, and pushed with the gradient of the dense parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from dbelief.arrays.push_source import PushSource
from dbelief.core.placement import Fetch
from dbelief.core.push import Push, PushResult
from dbelief.job import Asynchronous, Downpour, Job, SyncSgd
from dbelief.nn import Network
from dbelief.sparse.row_gradients import packed_gradients
from dbelief.sparse.table_reader import PullsRows, TableReader


class RowParameters(PullsRows, Protocol):
    """What is asked of the client of the shards beside `Parameters`."""

    def push(
        self,
        values: np.ndarray | PushSource,
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None = None,
        *,
        rows: Mapping[int, np.ndarray] | None = None,
    ) -> PushResult:
        """As `Parameters.push`, with packed rows by bucket."""
        ...


class TableRows:
    """Rows of the tables that a network reads.

    Parameters
    ----------
    network
        It reads its rows here from now on.
    dense
        Segments that are no buckets; see `Placement.dense`.

    Attributes
    ----------
    caches
        Of its rows, by table.
    """

    def __init__(self, job: Job, network: Network, parameters: RowParameters, dense: int) -> None:
        self._network, self._parameters = network, parameters
        self._reader = TableReader.of_job(job, parameters, dense)
        self.caches = self._reader.caches
        strategy = job.strategy
        assert isinstance(strategy, Downpour | Asynchronous | SyncSgd), "others have no tables"
        self._lockstep, self._base_rate = strategy.staleness is not None, strategy.rule.rate
        network.attach(self._reader.read_all)

    def begin(self, versions: np.ndarray, clock: int = 0) -> None:
        """Read rows for the mini-batch of a clock from now on, and write their buckets' versions there."""
        self._reader.versions = versions
        self._reader.stepped(clock if self._lockstep else 0)

    def take(self) -> dict[int, np.ndarray]:
        """By bucket, the packed gradients of the rows of the last mini-batch.

        Raises
        ------
        NonFinite
            One is NaN or infinite; names table and key.
        """
        return packed_gradients({name: [found] for name, found in self._network.take_rows().items()}, self._reader)

    def push(
        self,
        values: np.ndarray | PushSource,
        rows: Mapping[int, np.ndarray],
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None,
    ) -> PushResult:
        """Push a gradient with those of rows, whose rates follow the schedule of the push's."""
        with_factor = replace(push, row_factor=float(push.rate) / self._base_rate)
        return self._parameters.push(values, versions, with_factor, fetch, rows=rows)
