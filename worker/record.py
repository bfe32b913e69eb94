"""The log of what each gradient was computed from, from which a run can be replayed in one thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.pushes import Pusher
from dbelief.work import Lease


class Recorder:
    """Collects, per mini-batch, the lease, the step in it, and the version of every segment computed from."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def note(self, lease: Lease, step: int, versions: np.ndarray) -> None:
        """Take one mini-batch in."""
        self._rows.append(
            {
                "epoch": lease.epoch,
                "start": lease.start,
                "stop": lease.stop,
                "first_sequence": lease.first_sequence,
                "step": step,
                "versions": versions.tolist(),
            }
        )

    def write(self, folder: Path | None, pusher: Pusher) -> None:
        """Write what was collected as JSON lines to `folder`/replica-R-INCARNATION.jsonl, where there is anything."""
        if folder is None or not self._rows:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"replica-{pusher.replica}-{pusher.incarnation}.jsonl", "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._rows)
