"""The log of applied pushes, from which a run can be replayed in one thread."""

from __future__ import annotations

import json
from pathlib import Path

from dbelief.core.push import Pusher
from dbelief.process.atomic_file import atomic_write


class Recorder:
    """Collects (segment, replica, incarnation, sequence, rate) in the order of application.

    `recorded.py` reads what is written here. Per segment the order is that of application, for it is noted under
    the segment's lock; the list's own append is atomic. Across segments there is no order, nor need of one.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, float]] = []

    def note(self, segment: int, pusher: Pusher, sequence: int, rate: float) -> None:
        """Take one applied push in."""
        self._rows.append((segment, pusher.replica, pusher.incarnation, sequence, rate))

    def write(self, folder: Path | None, shard: int) -> None:
        """Write what was collected as JSON lines to `folder`/shard-N.jsonl, where there is anything."""
        if folder is None or not self._rows:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"shard-{shard}.jsonl") as file:
            file.writelines(f"{json.dumps(row)}\n".encode() for row in self._rows)
