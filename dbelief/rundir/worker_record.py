"""The log of what each gradient was computed from, from which a run can be replayed in one thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.core.lease import DataLease
from dbelief.core.push import Pusher
from dbelief.process.atomic_file import atomic_write


class Recorder:
    """Collects, per mini-batch, the lease, the step in it, and the version of every segment computed from.

    `dbelief.rundir.recorded` reads what is written here.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._acknowledged = 0

    def note(self, lease: DataLease, step: int, versions: np.ndarray) -> None:
        """Take one mini-batch in."""
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
        """Note that every segment has the pushes up to this one: a log of the shards without them is not whole."""
        self._acknowledged = sequence

    def write(self, folder: Path | None, pusher: Pusher) -> None:
        """Write what was collected as JSON lines to `folder`/replica-R-INCARNATION.jsonl, where there is anything."""
        if folder is None or not self._rows:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"replica-{pusher.replica}-{pusher.incarnation}.jsonl"
        head = {"replica": pusher.replica, "incarnation": pusher.incarnation, "acknowledged": self._acknowledged}
        with atomic_write(path) as file:
            file.writelines(f"{json.dumps(row)}\n".encode() for row in [head, *self._rows])
