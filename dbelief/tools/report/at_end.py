"""Pictures of a run, drawn by its launcher when the job is over, by code that is loaded while the job trains.

A coordinator draws them when its job is over, and loads the drawing code then: a second in which the user waits. A
launcher has nothing to do while the job trains.
"""

from __future__ import annotations

import os
from pathlib import Path

from dbelief.process.runtime import Thread, runtime
from dbelief.rpc.client.coordinator_client import OVER
from dbelief.rpc.pb import coordination_pb2 as wire

from .pictures import draw_pictures, load_drawing_code

SOON_S = 15.0
"""Expected rest of the job, in seconds, from which the drawing code is loaded: it takes 40 MiB."""
_OFF = ("0", "false", "f", "no", "n", "off")


def are_wanted() -> bool:
    """Whether a job's pictures are drawn at its end: unless `DBELIEF_PICTURES` is off; see `dbelief coordinator`."""
    return os.environ.get("DBELIEF_PICTURES", "").lower() not in _OFF


class PicturesAtEnd:
    """Pictures of the run in a folder, with a title; see `local_cluster.Pictures`."""

    def __init__(self, folder: Path, title: str) -> None:
        self._folder, self._title = folder, title
        self._loading: Thread | None = None

    def look(self, status: wire.StatusReply) -> None:
        """Load the drawing code if the job is about to end."""
        ends = status.state in (wire.STATE_CLOSING, *OVER)
        if self._loading is None and (ends or (status.state == wire.STATE_READY and 0 <= status.eta_s <= SOON_S)):
            self._loading = runtime.spawn(load_drawing_code, "pictures")

    def draw(self) -> None:
        """Draw them, of what the folder has by now.

        Raises
        ------
        DataError, WriteFailed
            See `draw_pictures`.
        """
        if self._loading is not None:
            self._loading.join()
        draw_pictures(self._folder, self._folder, self._title)
