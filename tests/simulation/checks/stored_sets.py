"""Every complete snapshot set is one that the job could be resumed from now: its files and its state agree.

A resume is rare, and each set must allow one. So each is read when it is complete, and these are checked:

* its buckets of tables have what their pushes give (`rows`), and the files of earlier sets that it needs are there for
  as long as it is complete
* the samples in its parameters are those that its state, with the ledgers in its files, counts as trained
* with staleness 0, its ledgers count no gradient of a round that its parameters do not have, unless it is one of those
  that were lost with an earlier incarnation of the shard: a restored segment counts them from the pusher's next push on
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file

from coordinator.core.ledgers import Applied
from coordinator.scheduling.leases import Leases
from dbelief.checkpoint.row_changes import with_changes
from dbelief.checkpoint.set_files import COMMIT
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.core.push import NO_PUSH, PARAMETERS, LedgerRow, Push, Pusher
from dbelief.rpc.client.shard_client import ShardedParameterClient
from ps_server.store.shard import SegmentResult, Shard
from tests.simulation.models.jobs import WORKERS, SimulatedJob
from tests.simulation.models.marks import SAMPLES

from .rows import RowWatch

Row = dict[str, Any]
"""A segment in a set: as in its manifest, with "arrays" by name; and, of no bucket, "trained", the samples in them."""


class StoredSets:
    """Checks the sets of one simulation.

    Parameters
    ----------
    lossless
        Whether no shard was restored so far: later ones may lack samples that count as trained, and as lost.
    violation
        Called with a text for each violation.
    buckets
        Of tables.
    """

    def __init__(
        self, job: SimulatedJob, lossless: Callable[[], bool], violation: Callable[[str], None], buckets: RowWatch
    ) -> None:
        self._job, self._lossless, self._violation, self._buckets = job, lossless, violation, buckets
        self._clocks: dict[tuple[Pusher, int], int] = {}  # of each push
        self._lost: dict[tuple[int, Pusher, int], int] = {}  # by segment and push: the version from which it is lost

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check each set that a coordinator completes."""
        commit, push, receive = LocalSets.commit, ShardedParameterClient.push, Shard.push

        def committed(sets: LocalSets, set_id: str, job: str, state: dict[str, Any]) -> None:
            commit(sets, set_id, job, state)
            self._check(sets.where / set_id, state)

        def pushed(client: Any, values: Any, versions: Any, header: Push, *rest: Any, **named: Any) -> Any:
            if header.vector == PARAMETERS and not header.assign:
                self._clocks[header.pusher, header.sequence] = header.clock
            return push(client, values, versions, header, *rest, **named)

        def received(shard: Shard, header: Push, index: int, *rest: Any, **named: Any) -> SegmentResult:
            segment = shard.segments.get(index)
            result = receive(shard, header, index, *rest, **named)
            if result.lost and segment is not None and header.base is not None and header.vector == PARAMETERS:
                for number in range(header.base - result.lost, header.base):
                    self._lost.setdefault((index, header.pusher, number), segment.first_version)
            return result

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(LocalSets, "commit", committed))
            stack.enter_context(mock.patch.object(ShardedParameterClient, "push", pushed))
            stack.enter_context(mock.patch.object(Shard, "push", received))
            yield

    def _check(self, folder: Path, state: Mapping[str, Any]) -> None:
        try:
            rows = [row for name in state["parts"] for row in _rows(folder, name)]
            self._check_needs(folder.parent)
        except FileNotFoundError as error:
            if (folder / COMMIT).exists():  # else a later set is complete already, and this one is removed
                self._violation(f"set {folder.name} lacks a file: {error}")
            return
        self._buckets.check_set(folder.name, rows, _lasts)
        if self._job.counts and not self._job.clients:
            self._check_leases(folder, state, rows)
        if self._job.rounds:
            self._check_rounds(folder, rows)

    def _check_needs(self, sets: Path) -> None:
        """Each complete set has what it needs of earlier ones."""
        for commit in sets.glob(f"*/{COMMIT}"):
            for manifest in json.loads(commit.read_text())["parts"]:
                for row in json.loads((commit.parent / manifest).read_text())["segments"]:
                    since = row.get("since")
                    if since is not None and not (sets / since["place"] / since["file"]).exists():
                        self._violation(f"set {commit.parent.name} needs {since['file']} of {since['place']}: missing")
                        return

    def _check_leases(self, folder: Path, state: Mapping[str, Any], rows: list[Row]) -> None:
        fields = state["leases"]
        leases = Leases(SAMPLES, self._job.epochs * SAMPLES, SAMPLES, self._job.batch)
        twice, _ = leases.restore(json.loads(json.dumps(fields)), _ledgers(rows, self._job.segments))
        trained = [row["trained"] for row in rows if "trained" in row]
        least, most = min(trained), max(trained)
        above = (state["pushes_twice"] + twice) * self._job.push_samples
        if most > leases.leased + above:
            self._violation(
                f"set {folder.name} has {most:g} samples, and its state counts {leases.leased} and {above} twice"
            )
        # Without locks, a set holds some numbers of the pushes in progress, one of each worker, and counts them.
        partial = WORKERS * self._job.push_samples if self._job.replication == 1 else 0
        if least + partial < leases.leased and self._lossless():
            self._violation(f"set {folder.name} has {least:g} samples, and its state counts {leases.leased}")

    def _check_rounds(self, folder: Path, rows: list[Row]) -> None:
        for row in rows:
            for pusher, (last, _, _) in _lasts(row).items():
                clock = self._clocks.get((pusher, last), -1)
                lost = row["version"] >= self._lost.get((row["index"], pusher, last), math.inf)
                if clock >= row["rounds"] and not lost:
                    self._violation(
                        f"set {folder.name} counts a gradient of round {clock} in segment {row['index']}, which has "
                        f"the first {row['rounds']} rounds"
                    )


def _rows(folder: Path, manifest: str) -> Iterator[Row]:
    content = json.loads((folder / manifest).read_text())
    arrays = load_file(folder / content["file"])
    for row in content["segments"]:
        own = _of_segment(arrays, row["index"])
        if (since := row.get("since")) is not None:
            earlier = load_file(folder.parent / since["place"] / since["file"])
            own = with_changes(_of_segment(earlier, row["index"]), own)
        trained = {"trained": -float(own[PARAMETERS][:SAMPLES].sum())} if PARAMETERS in own else {}
        yield {**row, **trained, "arrays": own}


def _of_segment(arrays: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    prefix = f"{index}/"
    return {name.removeprefix(prefix): values.copy() for name, values in arrays.items() if name.startswith(prefix)}


def _lasts(row: Row) -> dict[Pusher, LedgerRow]:
    rows = row["ledger"]
    return {
        Pusher(replica, incarnation, rank): LedgerRow(*last)
        for vector, replica, incarnation, rank, *last in rows
        if vector == PARAMETERS
    }


def _ledgers(rows: list[Row], segments: int) -> dict[int, Applied]:
    """By incarnation, what all segments of a set count of its pushes; `segments`: how many there are."""
    found: dict[int, list[LedgerRow]] = {}
    for row in rows:
        for pusher, last in _lasts(row).items():
            found.setdefault(pusher.incarnation, []).append(last)
    return {
        one: Applied(min(lasts) if len(lasts) == segments else NO_PUSH, max(lasts).sequence)
        for one, lasts in found.items()
    }
