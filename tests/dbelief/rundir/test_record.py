import json
from pathlib import Path

import numpy as np

from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import Pusher
from dbelief.rundir.record import BatchRecorder, ComputedBatch, PushRecorder, read_computed


def test_rows_are_written_in_order(tmp_path: Path) -> None:
    recorder = PushRecorder()
    recorder.note(3, Pusher(1, 11, 2), 5, 0.25)
    recorder.note(4, Pusher(0, 12), 1, 0.5)
    recorder.write(tmp_path / "a run" / "record", 7)
    lines = (tmp_path / "a run" / "record" / "shard-7.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [[3, 1, 11, 5, 0.25], [4, 0, 12, 1, 0.5]]


def test_without_a_folder_or_rows_there_is_no_file(tmp_path: Path) -> None:
    recorder = PushRecorder()
    recorder.write(tmp_path / "record", 0)
    recorder.note(0, Pusher(0, 1), 1, 0.1)
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
