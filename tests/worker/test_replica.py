"""The end of a replica with its reason, and reports of several ranks during a lease."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dbelief.core.ranks import RankGroup, SingleRank
from dbelief.errors import DataError, Rejected, Unavailable
from dbelief.evaluation.evaluate import Quality
from dbelief.job import PythonModel
from dbelief.rpc.pb import coordination_pb2 as wire
from worker.comm import Communicator, run_ranks
from worker.replica import Replica


class Told:
    """A membership whose next beat brings this."""

    def __init__(self, lost: str = "", error: Exception | None = None) -> None:
        self.lost, self.beats = "", 0
        self._news, self._error = lost, error

    def beat(self, patience_s: float) -> None:
        self.beats += 1
        if self._error is not None:
            raise self._error
        self.lost = self._news


def a_replica(ranks: RankGroup | None = None, **parts: Any) -> Any:
    """A replica with nothing but these parts."""
    replica: Any = object.__new__(Replica)
    replica._ranks = ranks or SingleRank()
    replica._rows = None
    replica._trainer = replica._bundle_worker = replica._group_trainer = None
    replica._reporter = SimpleNamespace(export=lambda: None)
    for name, part in parts.items():
        setattr(replica, f"_{name}", part)
    return replica


def stopped(member: Told, ranks: RankGroup | None = None) -> str:
    stop = wire.LeaseReply(stop="no more work")
    reason: str = a_replica(ranks, session=SimpleNamespace(member=member), next_assignment=lambda: stop).run()
    return reason


def test_expired_replica_ends_with_an_error() -> None:
    with pytest.raises(Rejected, match="removed this member"):
        stopped(Told(lost="the coordinator removed this member"))


def test_all_ranks_of_an_expired_replica_raise() -> None:
    def rank(comm: Communicator) -> str:
        with pytest.raises(Rejected) as caught:
            stopped(Told(lost="the coordinator removed this member" if comm.rank == 0 else ""), comm)
        return str(caught.value)

    assert run_ranks(2, rank, 5.0) == ["rank 0: the coordinator removed this member"] * 2


def test_failing_rank_reports_before_its_last_push() -> None:
    order = []

    class Aborted(SingleRank):
        def abort(self, error: BaseException) -> None:
            order.append(f"aborted: {error}")

    replica = a_replica(
        Aborted(),
        trainer=SimpleNamespace(close=lambda: order.append("pushed the rest")),
        reporter=SimpleNamespace(export=lambda: order.append("exported all")),
        next_assignment=Mock(side_effect=ZeroDivisionError("a rate of 0")),
    )
    with pytest.raises(ZeroDivisionError):
        replica.run()
    assert order == ["aborted: a rate of 0", "pushed the rest", "exported all"]


def test_the_end_of_a_job_is_a_good_end() -> None:
    for member in (Told(), Told(error=Unavailable("the coordinator has left"))):
        assert stopped(member) == "no more work"
        assert (member.beats, member.lost) == (1, ""), "it sent heartbeats, and was not removed"


def evaluating(
    monkeypatch: pytest.MonkeyPatch, order: list[object], report: Callable[..., wire.ReportReply], python: bool = False
) -> Any:
    """A replica of a job whose evaluations measure what `worker.replica.evaluate` returns."""
    parameters = SimpleNamespace(
        placement=SimpleNamespace(spans=[0]),
        array=None,
        locate=lambda epoch: order.append(("locate", epoch)),
        pull=lambda *_, vector, exact: order.append(("pull", vector)),
    )
    session = SimpleNamespace(
        parameters=parameters,
        data=SimpleNamespace(validation=None, test=[0]),
        part=None,
        backend=None,
        assign=lambda vector, values: order.append(("assign", vector)),
        metrics=None,
        job=SimpleNamespace(model=PythonModel(python="model.py:Model") if python else None),
    )
    copy = SimpleNamespace(host=None, versions=None, views=None, to_device=lambda: None)
    monkeypatch.setattr("worker.replica.ParameterBuffer.make", lambda *_: copy)
    reporter = SimpleNamespace(report=report, report_alive=None)
    phases = SimpleNamespace(end=lambda phase: None)
    return a_replica(session=session, model=None, unreadable=0, phases=phases, reporter=reporter)


def test_an_evaluation_uses_no_replaced_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that still runs may hold another vector of this name, and acknowledges a new one, which would be lost."""
    order: list[object] = []
    replies = iter([wire.ReportReply(store_as="best.1", placement_epoch=5), wire.ReportReply()])
    replica = evaluating(monkeypatch, order, lambda **_: next(replies))
    monkeypatch.setattr("worker.replica.evaluate", lambda *_: Quality(0.5, None, {}))
    replica._evaluate(wire.EvaluationLease(lease=7, set="test", vector="best.0", placement_epoch=3))
    assert order == [("locate", 3), ("pull", "best.0"), ("locate", 5), ("assign", "best.1")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DataError("test.parquet, row group 2: a target is missing in row 7"), "test.parquet, row group 2: a target"),
        (ValueError("shapes differ"), "model.py:Model: ValueError: shapes differ"),
    ],
)
def test_an_evaluation_that_cannot_be_made_is_reported_and_the_replica_goes_on(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    reports: list[dict[str, Any]] = []

    def report(**fields: Any) -> wire.ReportReply:
        reports.append(fields)
        return wire.ReportReply()

    replica = evaluating(monkeypatch, [], report, python=True)
    monkeypatch.setattr("worker.replica.evaluate", Mock(side_effect=error))
    replica._evaluate(wire.EvaluationLease(lease=7, set="test", vector="w"))
    (fields,) = reports
    failed = fields["evaluation_failed"]
    assert failed.lease == 7
    assert failed.reason.startswith(reason)


@pytest.mark.parametrize(("python", "error"), [(True, OSError("no memory left")), (False, ValueError("a bug"))])
def test_a_failure_of_a_machine_at_an_evaluation_ends_the_replica(
    monkeypatch: pytest.MonkeyPatch, python: bool, error: Exception
) -> None:
    """Another replica may succeed; the coordinator counts how many fail."""
    replica = evaluating(monkeypatch, [], Mock(side_effect=AssertionError("nothing is reported")), python)
    monkeypatch.setattr("worker.replica.evaluate", Mock(side_effect=error))
    with pytest.raises(type(error), match=str(error)):
        replica._evaluate(wire.EvaluationLease(lease=7, set="test", vector="w"))


def test_a_replica_asks_less_often_the_longer_it_has_waited() -> None:
    """By an eighth of that time, up to 0.1 s; anew after each lease."""
    replies = [*[wire.LeaseReply(wait_s=0.02)] * 60, wire.LeaseReply(training=wire.TrainingLease(lease=1))]
    left = iter([*replies, wire.LeaseReply(wait_s=0.02), wire.LeaseReply(stop="no more work")])
    pauses: list[float] = []
    replica = a_replica(
        session=SimpleNamespace(member=Told()),
        waited_s=0.0,
        interrupted=SimpleNamespace(wait=pauses.append),
        phases=SimpleNamespace(end=lambda phase: None),
        next_assignment=lambda: next(left),
        train=lambda lease: None,
    )
    assert replica.run() == "no more work"
    assert pauses[:9] == [0.02] * 9
    assert all(pause <= max(0.02, sum(pauses[:n]) / 8) for n, pause in enumerate(pauses[:60]))
    assert pauses[59:] == [0.1, 0.02]
