"""The end of a replica with its reason, and reports of several ranks during a lease."""

from types import SimpleNamespace
from typing import Any

import pytest

from dbelief.core.ranks import RankGroup, SingleRank
from dbelief.errors import Rejected, Unavailable
from dbelief.evaluation.evaluate import Quality
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


def stopped(member: Told, ranks: RankGroup | None = None) -> str:
    replica: Any = object.__new__(Replica)
    replica._session, replica._ranks = SimpleNamespace(member=member), ranks or SingleRank()
    replica._next_assignment = lambda: wire.LeaseReply(stop="no more work")
    replica._trainer = replica._bundle_worker = replica._group_trainer = None
    replica._reporter = SimpleNamespace(export=lambda: None)
    reason: str = replica.run()
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

    replica: Any = object.__new__(Replica)
    replica._ranks, replica._bundle_worker, replica._group_trainer = Aborted(), None, None
    replica._trainer = SimpleNamespace(close=lambda: order.append("pushed the rest"))
    replica._reporter = SimpleNamespace(export=lambda: order.append("exported all"))

    def fails() -> None:
        raise ZeroDivisionError("a rate of 0")

    replica._next_assignment = fails
    with pytest.raises(ZeroDivisionError):
        replica.run()
    assert order == ["aborted: a rate of 0", "pushed the rest", "exported all"]


def test_the_end_of_a_job_is_a_good_end() -> None:
    for member in (Told(), Told(error=Unavailable("the coordinator has left"))):
        assert stopped(member) == "no more work"
        assert (member.beats, member.lost) == (1, ""), "it sent heartbeats, and was not removed"


def test_an_evaluation_uses_no_replaced_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that still runs may hold another vector of this name, and acknowledges a new one, which would be lost."""
    order: list[object] = []
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
    )
    replica: Any = object.__new__(Replica)
    replica._session, replica._ranks, replica._model, replica._unreadable = session, SingleRank(), None, 0
    replica._phases = SimpleNamespace(end=lambda phase: None)
    replies = iter([wire.ReportReply(store_as="best.1", placement_epoch=5), wire.ReportReply()])
    replica._reporter = SimpleNamespace(report=lambda **_: next(replies), report_alive=None)
    copy = SimpleNamespace(host=None, versions=None, views=None, to_device=lambda: None)
    monkeypatch.setattr("worker.replica.ParameterBuffer.make", lambda *_: copy)
    monkeypatch.setattr("worker.replica.evaluate", lambda *_: Quality(0.5, None, {}))
    replica._evaluate(wire.EvaluationLease(lease=7, set="test", vector="best.0", placement_epoch=3))
    assert order == [("locate", 3), ("pull", "best.0"), ("locate", 5), ("assign", "best.1")]


def test_a_replica_asks_less_often_the_longer_it_has_waited() -> None:
    """By an eighth of that time, up to 0.1 s; anew after each lease."""
    replies = [*[wire.LeaseReply(wait_s=0.02)] * 60, wire.LeaseReply(training=wire.TrainingLease(lease=1))]
    left = iter([*replies, wire.LeaseReply(wait_s=0.02), wire.LeaseReply(stop="no more work")])
    pauses: list[float] = []
    replica: Any = object.__new__(Replica)
    replica._session, replica._ranks, replica._waited_s = SimpleNamespace(member=Told()), SingleRank(), 0.0
    replica._trainer = replica._bundle_worker = replica._group_trainer = None
    replica._reporter = SimpleNamespace(export=lambda: None)
    replica._interrupted, replica._phases = SimpleNamespace(wait=pauses.append), SimpleNamespace(end=lambda phase: None)
    replica._next_assignment, replica._train = lambda: next(left), lambda lease: None
    assert replica.run() == "no more work"
    assert pauses[:9] == [0.02] * 9
    assert all(pause <= max(0.02, sum(pauses[:n]) / 8) for n, pause in enumerate(pauses[:60]))
    assert pauses[59:] == [0.1, 0.02]
