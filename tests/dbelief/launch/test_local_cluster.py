"""The end of a local run: of scripts before the job, and of pictures after it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbelief.errors import RuntimeFailure, WriteFailed
from dbelief.launch.local_cluster import LocalCluster
from dbelief.launch.script_failures import ScriptFailures
from dbelief.process.terminal.console import Interrupt
from dbelief.rpc.pb import coordination_pb2 as wire
from tests.dbelief.monitor.test_status import SUMMARY


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
    (message,) = [record.message for record in caplog.records if record.levelno > logging.DEBUG]
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


def a_cluster(*workers: Any) -> LocalCluster:
    """A cluster of scripts whose processes are stand-ins."""
    cluster = LocalCluster.__new__(LocalCluster)
    cluster._script, cluster._shards, cluster._abandoned = ["--", "x.py"], {}, set()
    cluster._joined, cluster._failures, cluster._ended, cluster._leaving = set(), ScriptFailures(), [], {}
    cluster._workers = cast(Any, dict(enumerate(workers)))
    cluster.job = cast(Any, SimpleNamespace(replication=1))
    return cluster


@pytest.mark.parametrize("left", [set(), {"script-0"}])
def test_a_job_lacks_samples_only_where_its_scripts_had_ended_before_the_status(left: set[str]) -> None:
    cluster, client = a_cluster(Ended()), Reports()
    cluster._restart_failed(cast(Any, client), [], [], left, wire.STATE_READY)
    assert ["needs more samples" in report.trouble for report in client.sent] == [True] * len(left)


class Failed:
    """A script that fails by its own code."""

    started, process, restarts, code = 1, None, 3, 1

    def __init__(self, number: int) -> None:
        self.name = f"worker-{number}"

    def log_messages(self) -> list[str]:
        return ['  File "/s.py", line 3, in <module>', "    import a", "ModuleNotFoundError: No module named 'a'"]

    def restart_if_due(self, now_s: float) -> bool:
        raise AssertionError("it is started again")


def test_a_job_whose_scripts_all_fail_in_the_same_way_fails_at_once() -> None:
    workers = [Failed(0), Failed(1)]
    cluster, client = a_cluster(*workers), Reports()
    cluster._restart_failed(cast(Any, client), [], [], set(), wire.STATE_EMPTY, cast(Any, workers))
    (report,) = client.sent
    reason = "/s.py:3: ModuleNotFoundError: No module named 'a'"
    assert report.trouble == f"the script fails before it joins the job: {reason}"


class Going:
    """A process that can be asked to end."""

    def __init__(self, name: str, code: int | None = None) -> None:
        self.name, self.code, self.asked, self.started = name, code, 0, 1

    def ask_to_end(self) -> None:
        self.asked += 1

    def wait(self, timeout_s: float) -> None:
        self.code = 0


def test_a_script_that_has_joined_goes_on_after_the_job() -> None:
    joined, left, waiting, silent, restarted = scripts = [Going(f"worker-{number}") for number in range(5)]
    restarted.started = 2
    cluster = a_cluster(*scripts)
    states = {"worker-0": "training", "worker-1": "left", "worker-3": "died", "worker-4": "died", "ps-0": "serving"}
    members = [wire.MemberStatus(name=name, state=state) for name, state in states.items()]
    cluster._note_members(wire.StatusReply(members=members))
    cluster._wait_for_scripts(Interrupt())
    assert [script.asked for script in (joined, left, waiting, silent, restarted)] == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("codes", "others", "asked"), [([1, -9], [], 1), ([1, None], [], 0), ([1, 1], ["elsewhere:7"], 0)]
)
def test_a_coordinator_does_not_wait_for_workers_that_have_ended(
    codes: list[int | None], others: list[str], asked: int
) -> None:
    workers = [Going(f"worker-{number}", code) for number, code in enumerate(codes)]
    cluster, coordinator = a_cluster(*workers), Going("coordinator")
    members = [wire.MemberStatus(name=name, role=wire.ROLE_REPLICA) for name in ("worker-0", "worker-1", *others)]
    members.append(wire.MemberStatus(name="ps-0", role=wire.ROLE_SHARD))
    for _ in range(2):  # a second signal would be its end at once
        cluster._end_early(cast(Any, coordinator), wire.StatusReply(members=members))
    assert coordinator.asked == asked


@pytest.mark.parametrize(
    ("code", "fields", "signal", "wanted"),
    [
        (0, {}, False, 0),
        (0, {}, True, 130),
        (1, {"state": "failed", "reason": "diverged"}, False, 1),
        (1, {"state": "failed", "reason": "diverged"}, True, 1),
        (1, {"state": "failed", "reason": "stopped by Ctrl-C, before training began"}, True, 130),
        (3, {"evaluation_failed": {"test": "a gap"}}, False, 3),
        (3, {"evaluation_failed": {"test": "a gap"}}, True, 3),
        (-9, {}, False, 0),
        (-9, {}, True, 130),
        (-9, {"state": "failed", "reason": "diverged"}, False, 1),
        (-9, {"evaluation_failed": {"test": "a gap"}}, False, 3),
        (-15, {}, False, 0),
    ],
)
def test_the_exit_code_of_a_run_that_has_ended(
    code: int, fields: dict[str, Any], signal: bool, wanted: int, tmp_path: Path
) -> None:
    """A coordinator that is killed after it has written the summary makes no failure of the run."""
    cluster, interrupted = LocalCluster.__new__(LocalCluster), Interrupt()
    cluster.folder, cluster._site = tmp_path, cast(Any, SimpleNamespace(stopped=130))
    (tmp_path / "summary.json").write_text(json.dumps({**SUMMARY, "state": "done", "reason": "", **fields}))
    if signal:
        interrupted.set()
    coordinator = SimpleNamespace(code=code, fate=lambda: "coordinator was killed by SIGKILL")
    assert cluster._exit_code(cast(Any, coordinator), interrupted) == wanted


def test_a_stop_request_that_fails_is_reported_as_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    failures = [RuntimeFailure("no answer"), RuntimeFailure("no answer")]

    def call(method: str, request: Any) -> None:
        assert (method, request.reason) == ("Stop", "stopped by Ctrl-C")
        if failures:
            raise failures.pop()

    cluster, client = LocalCluster.__new__(LocalCluster), cast(Any, SimpleNamespace(call=call))
    sent = [cluster._ask_to_stop(client, "Ctrl-C", first=number == 0) for number in range(3)]
    assert sent == [False, False, True]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["Ctrl-C: the stop request to the coordinator failed, and is sent again: no answer"]
