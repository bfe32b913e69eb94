"""Logs of a run with `record: true`, from which it can be replayed in one thread: their writers, rows and reader.

Files in `runs/NAME/record`, JSON lines, each written atomically by its program at its end:

shard-N.jsonl      [segment, replica, incarnation, sequence, rate], one per applied push; per segment in the order of
                   application; with DiLoCo also its round, and its weight in it
replica-R-I.jsonl  {replica, incarnation, acknowledged}: the log's replica, and its last push that every segment has;
                   then one line per mini-batch {epoch, start, stop, samples_before, step, sequence, versions}: its
                   lease, its position in it, the number of its push, and the version of every segment it was computed
                   from; with elastic averaging, the version of the current centre. With DiLoCo one line per fetch:
                   step 0 is a lease's first, with the number of its first round; other steps are those before a push
                   that fetches, with its number
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import AppliedPush, Pusher
from dbelief.errors import DataError
from dbelief.process.atomic_file import atomic_write

_COLUMNS = "segment", "replica", "incarnation", "sequence", "rate", "round", "weight"
_HEAD = frozenset({"replica", "incarnation", "acknowledged"})
_ROW = frozenset({"epoch", "start", "stop", "samples_before", "step", "sequence", "versions"})


class PushRecorder:
    """Recorder of a shard's applied pushes, in the order of application.

    Per segment the order is that of application, for the caller holds the segment's lock; the list's own append is
    atomic. Across segments no order is defined, and none is needed.
    """

    def __init__(self) -> None:
        self._rows: list[AppliedPush] = []

    def note(self, applied: AppliedPush) -> None:
        """Record one applied push."""
        self._rows.append(applied)

    def write(self, folder: Path | None, shard: int) -> None:
        """Write `folder`/shard-N.jsonl, if there are rows."""
        if folder is not None and self._rows:
            _write_lines(folder / f"shard-{shard}.jsonl", map(_columns, self._rows))


def _columns(row: AppliedPush) -> list[float]:
    columns = [row.segment, row.pusher.replica, row.pusher.incarnation, row.sequence, row.rate]
    return columns if row.round is None or row.weight is None else [*columns, row.round, row.weight]


class BatchRecorder:
    """Recorder of a replica's mini-batches, or fetches: the lease, the step in it, and the version of every segment."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._acknowledged = 0

    def note(self, lease: DataLease, step: int, sequence: int, versions: np.ndarray) -> None:
        """Record one mini-batch, or fetch, and the number of its push."""
        self._rows.append(
            {
                "epoch": lease.epoch,
                "start": lease.start,
                "stop": lease.stop,
                "samples_before": lease.samples_before,
                "step": step,
                "sequence": sequence,
                "versions": versions.tolist(),
            }
        )

    def acknowledged(self, sequence: int) -> None:
        """Record that every segment has the pushes up to this one: a shard log without them is incomplete."""
        self._acknowledged = sequence

    def write(self, folder: Path | None, pusher: Pusher) -> None:
        """Write `folder`/replica-R-INCARNATION.jsonl, if there are rows."""
        if folder is not None and self._rows:
            head = {"replica": pusher.replica, "incarnation": pusher.incarnation, "acknowledged": self._acknowledged}
            _write_lines(folder / f"replica-{pusher.replica}-{pusher.incarnation}.jsonl", [head, *self._rows])


def _write_lines(path: Path, rows: Iterable[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.writelines(f"{json.dumps(row)}\n".encode() for row in rows)


@dataclass(frozen=True)
class ComputedBatch:
    """A row of a replica's log: one mini-batch, from which the gradient of a push was computed.

    Attributes
    ----------
    epoch, start, stop
        Half-open range of the mini-batch in the permutation of its epoch.
    versions
        Version of every segment, by ascending index.
    acknowledged
        Whether the replica received the acknowledgement of every segment; a replica that failed may have left a push
        that only some segments have, or none.
    samples_before
        Samples leased before the mini-batch: its position in the learning-rate schedule.
    pushed
        Whether its push, or exchange, follows it directly; else it follows a later mini-batch.
    """

    pusher: Pusher
    sequence: int
    epoch: int
    start: int
    stop: int
    versions: tuple[int, ...]
    acknowledged: bool = True
    samples_before: int = 0
    pushed: bool = True


@dataclass(frozen=True)
class FetchedVersions:
    """A row of a replica's log with DiLoCo: a fetch.

    Attributes
    ----------
    lease
        Without its number and clock.
    step
        Mini-batches of the lease before it: 0 begins the lease.
    sequence
        Of the push that it came with; of a lease's first, of the first push after it.
    acknowledged
        The last push of its pusher that every segment has.
    """

    pusher: Pusher
    lease: DataLease
    step: int
    sequence: int
    versions: tuple[int, ...]
    acknowledged: int


def read_record(folder: Path, cadence: FetchPushSchedule) -> tuple[list[AppliedPush], list[ComputedBatch]]:
    """Read all logs of a run whose replicas push by this schedule.

    Raises
    ------
    DataError
        A log is missing, or cannot be read; names file and line.
    """
    shards, replicas = _logs(folder)
    return [row for path in shards for row in read_applied(path)], [
        row for path in replicas for row in read_computed(path, cadence)
    ]


def read_rounds(folder: Path) -> tuple[list[AppliedPush], list[FetchedVersions]]:
    """Read all logs of a run of DiLoCo; raises DataError as `read_record`."""
    shards, replicas = _logs(folder)
    return [row for path in shards for row in read_applied(path, in_rounds=True)], [
        row for path in replicas for row in read_fetched(path)
    ]


def _logs(folder: Path) -> tuple[list[Path], list[Path]]:
    shards, replicas = sorted(folder.glob("shard-*.jsonl")), sorted(folder.glob("replica-*.jsonl"))
    if not shards or not replicas:
        raise DataError(f"{folder}: no log of a {'replica' if shards else 'shard'}")
    return shards, replicas


def read_applied(path: Path, in_rounds: bool = False) -> list[AppliedPush]:
    """Read one shard-N.jsonl; raises DataError as `read_record`."""
    rows, columns = _lines(path), _COLUMNS if in_rounds else _COLUMNS[:5]
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list) or len(row) != len(columns):
            raise DataError(f"{path}, line {number}: not [{', '.join(columns)}]")
    return [
        AppliedPush(segment, Pusher(replica, incarnation), *others) for segment, replica, incarnation, *others in rows
    ]


def read_fetched(path: Path) -> list[FetchedVersions]:
    """Read one replica-R-I.jsonl of DiLoCo; raises DataError as `read_record`."""
    pusher, acknowledged, rows = _of_replica(path)
    return [
        FetchedVersions(
            pusher,
            DataLease(0, row["epoch"], row["start"], row["stop"], row["samples_before"]),
            row["step"],
            row["sequence"],
            tuple(row["versions"]),
            acknowledged,
        )
        for row in rows
    ]


def read_computed(path: Path, cadence: FetchPushSchedule) -> list[ComputedBatch]:
    """Read one replica-R-I.jsonl; raises DataError as `read_record`."""
    pusher, last, rows = _of_replica(path)
    computed = []
    for row in rows:
        step, steps, before = row["step"], cadence.steps(row["stop"] - row["start"]), row["step"] * cadence.batch
        first, sequence = row["start"] + before, row["sequence"]
        acknowledged = sequence <= last
        stop, pushed = min(first + cadence.batch, row["stop"]), cadence.pushes_after(step, steps)
        versions, samples = tuple(row["versions"]), row["samples_before"] + before
        computed.append(
            ComputedBatch(pusher, sequence, row["epoch"], first, stop, versions, acknowledged, samples, pushed)
        )
    return computed


def _of_replica(path: Path) -> tuple[Pusher, int, list[Any]]:
    """The pusher of one replica-R-I.jsonl, its last acknowledged push, and the rows."""
    head, *rows = _lines(path) or [None]
    for number, (row, names) in enumerate([(head, _HEAD), *((row, _ROW) for row in rows)], start=1):
        if not isinstance(row, dict) or not names <= row.keys():
            raise DataError(f"{path}, line {number}: no mapping with {', '.join(sorted(names))}")
    return Pusher(head["replica"], head["incarnation"]), head["acknowledged"], rows


def _lines(path: Path) -> list[Any]:
    rows: list[Any] = []
    try:
        with open(path) as file:
            rows.extend(json.loads(line) for line in file)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}, line {len(rows) + 1}: cannot be read: {error}") from error
    return rows
