"""The end of a local run: what fails after the job has succeeded is logged, and changes no exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.errors import WriteFailed
from dbelief.launch.local_cluster import LocalCluster
from dbelief.rpc.pb import coordination_pb2 as wire


class Full:
    """Pictures for which the disk has no room."""

    def look(self, status: wire.StatusReply) -> None:
        """Do nothing."""

    def draw(self) -> None:
        raise WriteFailed("curves.png: the pictures cannot be written: No space left on device")


def test_pictures_that_cannot_be_drawn_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = LocalCluster.__new__(LocalCluster)
    cluster.folder, cluster._pictures = tmp_path, Full()
    cluster._draw_pictures()
    (message,) = caplog.messages
    assert message.startswith("curves.png: the pictures cannot be written: No space left on device; `dbelief report ")
