"""Reports of a script: they travel while it computes, one at a time, in the order of its totals."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbelief.core.push import PARAMETERS, LedgerRow, PushResult
from dbelief.errors import Rejected
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.script.progress import PushedSteps, ScriptProgress
from dbelief.training.session import Session

WAIT_S = 60.0


class Coordinator:
    """Answers when it is allowed to; `received`: samples of each report, in the order of their begin."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.seconds: list[dict[str, float]] = []
        self.cached: list[tuple[dict[str, int], dict[str, int]]] = []
        self.may_answer, self.asked = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def call(self, method: str, request: Any) -> Any:
        """See `MembershipClient.call`."""
        report = request if method == "Report" else request.report
        self.received.append(report.progress.samples)
        self.seconds.append(dict(report.seconds))
        self.cached.append((dict(report.cache_reads), dict(report.cache_hits)))
        self.asked.set()
        assert self.may_answer.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        answer = wire.ReportReply if method == "Report" else wire.LeaseReply
        return answer(samples=2 * report.progress.samples)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr("dbelief.script.progress.REPORT_EVERY_S", -1.0)
    return Coordinator()


@pytest.fixture
def progress(coordinator: Coordinator) -> ScriptProgress:
    parameters = SimpleNamespace(figures=lambda: wire.WireFigures(sent=1))
    caches = {"user": SimpleNamespace(reads=8, hits=6)}
    session = SimpleNamespace(member=coordinator, parameters=parameters, sequences={PARAMETERS: 0}, caches=caches)
    return ScriptProgress(cast(Session, session))


def pushed(number: int) -> PushedSteps:
    return PushedSteps(LedgerRow(number, 1, 10 * number), 10, 1, 1.0)


def test_a_script_computes_while_its_report_travels(coordinator: Coordinator, progress: ScriptProgress) -> None:
    for number in (1, 2, 3):
        progress.acknowledged(pushed(number), PushResult(0.0))  # none waits for an answer
    assert coordinator.asked.wait(WAIT_S)
    assert coordinator.received == [10]
    assert progress.job_samples == 30
    coordinator.may_answer.set()
    progress.request_work(0, wire.WANTS_TRAINING)
    assert coordinator.received == [10, 30]
    assert progress.job_samples == 60


def test_the_last_report_is_answered_before_a_script_leaves(coordinator: Coordinator, progress: ScriptProgress) -> None:
    progress.acknowledged(pushed(1), PushResult(0.0))
    coordinator.may_answer.set()
    progress.flush()  # nothing is new
    assert (coordinator.received, progress.job_samples) == ([10], 20)


def test_reports_have_the_time_by_phase_and_the_hits_of_caches(
    coordinator: Coordinator, progress: ScriptProgress
) -> None:
    coordinator.may_answer.set()
    progress.phases.end("compute")
    progress.phases.end("push")
    progress.report()
    progress.request_work(0, wire.WANTS_TRAINING)
    assert coordinator.seconds == [progress.phases.seconds] * 2
    assert coordinator.cached == [({"user": 8}, {"user": 6})] * 2
    assert min(progress.phases.seconds[phase] for phase in ("compute", "push")) > 0


def test_a_report_that_is_refused_ends_the_next_call(coordinator: Coordinator, progress: ScriptProgress) -> None:
    coordinator.error = Rejected("this replica was removed")
    coordinator.may_answer.set()
    progress.acknowledged(pushed(1), PushResult(0.0))
    with pytest.raises(Rejected, match="removed"):
        progress.report()
    assert coordinator.received == [10]
