import json
from pathlib import Path

import numpy as np
import pytest

from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import AppliedPush, Pusher
from dbelief.errors import DataError
from dbelief.rundir.record import (
    BatchRecorder,
    ComputedBatch,
    FetchedVersions,
    PushRecorder,
    read_applied,
    read_computed,
    read_rounds,
)


def test_rows_are_written_in_order(tmp_path: Path) -> None:
    recorder = PushRecorder()
    recorder.note(AppliedPush(3, Pusher(1, 11, 2), 5, 0.25))
    recorder.note(AppliedPush(4, Pusher(0, 12), 1, 0.5))
    recorder.write(tmp_path / "a run" / "record", 7)
    lines = (tmp_path / "a run" / "record" / "shard-7.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [[3, 1, 11, 5, 0.25], [4, 0, 12, 1, 0.5]]


def test_without_a_folder_or_rows_there_is_no_file(tmp_path: Path) -> None:
    recorder = PushRecorder()
    recorder.write(tmp_path / "record", 0)
    recorder.note(AppliedPush(0, Pusher(0, 1), 1, 0.1))
    recorder.write(None, 0)
    assert list(tmp_path.iterdir()) == []


def test_mini_batches_name_their_push_and_whether_it_was_acknowledged(tmp_path: Path) -> None:
    """The numbers are the replica's own: its leases may have any number of pushes, and others come between."""
    recorder, versions = BatchRecorder(), np.array([3, 4])
    first, second = DataLease(7, 0, 10, 40, samples_before=100), DataLease(9, 1, 0, 10, samples_before=130)
    for step, sequence in enumerate([2, 2, 3]):
        recorder.note(first, step, sequence, versions + step)
    recorder.acknowledged(3)
    recorder.note(second, 0, 8, versions)
    recorder.write(tmp_path, Pusher(1, 11))
    computed = read_computed(tmp_path / "replica-1-11.jsonl", FetchPushSchedule(10, n_push=2))
    assert computed == [
        ComputedBatch(Pusher(1, 11), 2, 0, 10, 20, (3, 4), True, 100, False),
        ComputedBatch(Pusher(1, 11), 2, 0, 20, 30, (4, 5), True, 110, True),
        ComputedBatch(Pusher(1, 11), 3, 0, 30, 40, (5, 6), True, 120, True),
        ComputedBatch(Pusher(1, 11), 8, 1, 0, 10, (3, 4), False, 130, True),
    ]


def test_rounds_are_read_as_they_were_noted(tmp_path: Path) -> None:
    applied = [AppliedPush(0, Pusher(1, 11), 4, 0.7, 2, 96), AppliedPush(0, Pusher(2, 12), 3, 0.7, 2, 0.1)]
    shard, recorder, lease = PushRecorder(), BatchRecorder(), DataLease(0, 1, 10, 40, samples_before=100)
    for row in applied:
        shard.note(row)
    recorder.note(lease, 0, 4, np.array([3, 4]))
    recorder.note(lease, 5, 4, np.array([3, 5]))
    recorder.acknowledged(4)
    shard.write(tmp_path, 0)
    recorder.write(tmp_path, Pusher(1, 11))
    fetched = [FetchedVersions(Pusher(1, 11), lease, *row, 4) for row in ((0, 4, (3, 4)), (5, 4, (3, 5)))]
    assert read_rounds(tmp_path) == (applied, fetched)
    with pytest.raises(DataError, match=r"shard-0.jsonl, line 1: not \[segment, replica, .*, rate\]$"):
        read_applied(tmp_path / "shard-0.jsonl")
