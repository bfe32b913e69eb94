"""Log of the inputs of each gradient, from which a run can be replayed in one thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.core.lease import DataLease
from dbelief.core.push import Pusher
from dbelief.process.atomic_file import atomic_write


class Recorder:
    """Recorder of mini-batches: the lease, the step in it, and the version of every segment.

    `dbelief.rundir.recorded` reads its files.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._acknowledged = 0

    def note(self, lease: DataLease, step: int, versions: np.ndarray) -> None:
        """Record one mini-batch."""
        self._rows.append(
            {
                "epoch": lease.epoch,
                "start": lease.start,
                "stop": lease.stop,
                "first_sequence": lease.first_sequence,
                "samples_before": lease.samples_before,
                "step": step,
                "versions": versions.tolist(),
            }
        )

    def acknowledged(self, sequence: int) -> None:
        """Record that every segment has the pushes up to this one: a shard log without them is incomplete."""
        self._acknowledged = sequence

    def write(self, folder: Path | None, pusher: Pusher) -> None:
        """Write the rows as JSON lines to `folder`/replica-R-INCARNATION.jsonl, if there are any."""
        if folder is None or not self._rows:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"replica-{pusher.replica}-{pusher.incarnation}.jsonl"
        head = {"replica": pusher.replica, "incarnation": pusher.incarnation, "acknowledged": self._acknowledged}
        with atomic_write(path) as file:
            file.writelines(f"{json.dumps(row)}\n".encode() for row in [head, *self._rows])
