"""The end of a local run: of scripts before the job, and of pictures after it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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


class Ended:
    """A script that has ended, with exit code 0."""

    name, code, started, process, restarts = "script-0", 0, 1, None, 3

    def fate(self) -> str:
        return "script-0 has ended"

    def restart_if_due(self, now_s: float) -> bool:
        return True


class Reports:
    """A coordinator's client that keeps what is reported."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def call(self, method: str, request: Any) -> None:
        self.sent.append(request)


@pytest.mark.parametrize("left", [set(), {"script-0"}])
def test_a_job_lacks_samples_only_where_its_scripts_had_ended_before_the_status(left: set[str]) -> None:
    cluster = LocalCluster.__new__(LocalCluster)
    cluster._script, cluster._shards, cluster._abandoned = ["--", "x.py"], {}, set()
    cluster._workers = cast(Any, {0: Ended()})
    cluster.job = cast(Any, SimpleNamespace(replication=1))
    client = Reports()
    cluster._restart_failed(cast(Any, client), [], [], left, wire.STATE_READY)
    assert ["needs more samples" in report.trouble for report in client.sent] == [True] * len(left)
