import json
from pathlib import Path

from dbelief.core.push import Pusher
from dbelief.rundir.record import PushRecorder


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
