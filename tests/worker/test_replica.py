"""A replica that is told to stop, and why; and what one of several ranks tells while a lease is under way."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbelief.core.lease import DataLease
from dbelief.core.push import Pusher, PushResult, StalenessHistogram
from dbelief.core.ranks import RankGroup, SingleRank
from dbelief.errors import Rejected, Unavailable
from dbelief.rpc import coordination_pb2 as wire
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MemberView
from worker.comm import Communicator, run_ranks
from worker.pipeline.buffers import GradientBuffer
from worker.replica import Replica
from worker.strategies.downpour import PhaseTimer


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
    replica._spread = StalenessHistogram()
    replica._session, replica._ranks = SimpleNamespace(member=member), ranks or SingleRank()
    replica._next_assignment = lambda: wire.LeaseReply(stop="no more work")
    replica._trains = replica._bundles = replica._together = None
    reason: str = replica.run()
    return reason


def test_one_that_was_given_up_does_not_end_well() -> None:
    with pytest.raises(Rejected, match="gave this member up"):
        stopped(Told(lost="the coordinator gave this member up"))


def test_all_ranks_of_one_that_was_given_up_know_it() -> None:
    def rank(comm: Communicator) -> str:
        with pytest.raises(Rejected) as caught:
            stopped(Told(lost="the coordinator gave this member up" if comm.rank == 0 else ""), comm)
        return str(caught.value)

    assert run_ranks(2, rank, 5.0) == ["rank 0: the coordinator gave this member up"] * 2


def test_a_rank_that_fails_says_so_before_it_pushes_what_is_left() -> None:
    order = []

    class Aborted(SingleRank):
        def abort(self, error: BaseException) -> None:
            order.append(f"told: {error}")

    replica: Any = object.__new__(Replica)
    replica._spread = StalenessHistogram()
    replica._ranks, replica._bundles, replica._together = Aborted(), None, None
    replica._trains = SimpleNamespace(close=lambda: order.append("pushed the rest"))

    def fails() -> None:
        raise ZeroDivisionError("a rate of 0")

    replica._next_assignment = fails
    with pytest.raises(ZeroDivisionError):
        replica.run()
    assert order == ["told: a rate of 0", "pushed the rest"]


def test_the_end_of_a_job_is_a_good_end() -> None:
    for member in (Told(), Told(error=Unavailable("the coordinator has left"))):
        assert stopped(member) == "no more work"
        assert (member.beats, member.lost) == (1, ""), "it asked, and was not given up"


class Coordinator:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.reports: list[wire.ReportRequest] = []

    def call(self, method: str, request: wire.ReportRequest) -> wire.ReportReply:
        assert method == "Report"
        self.reports.append(request)
        return wire.ReportReply()


def trained(comm: Communicator, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, lost: int = 0) -> None:
    """One rank trains a lease of three pushes, none of them too early to report; the first has lost some before it."""
    monkeypatch.setattr("worker.replica.REPORT_EVERY_S", -1.0)
    replica: Any = object.__new__(Replica)
    replica._spread = StalenessHistogram()
    shards = SimpleNamespace(figures=lambda: wire.WireFigures(sent=100, received=10 + comm.rank, residual=0.5))
    replica._session = SimpleNamespace(
        next_sequence=lambda: 1,
        pusher=Pusher(3, 7, comm.rank),
        member=MemberView(cast("CoordinatorClient", coordinator), wire.ROLE_REPLICA, 3, 7, 0),
        parameters=shards,
    )
    replica._ranks, replica._told_lock, replica._reported_s = comm, threading.Lock(), time.monotonic()
    replica._recorder = replica._metrics = _Anything()
    replica._phases, replica._shown, replica._together = PhaseTimer(), {}, None

    def train(lease: DataLease) -> None:
        for sequence in (1, 2, 3):
            slot = cast("GradientBuffer", SimpleNamespace(sequence=sequence, samples=10, steps=1, loss_sum=1.0))
            replica._acknowledged(slot, PushResult(0.0, 0, lost if sequence == 1 else 0))

    replica._trains = SimpleNamespace(train=train)
    replica._train(wire.TrainingLease(lease=1, stop=30, first_sequence=1))


class _Anything:
    """Metrics that nobody looks at."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *values: Any) -> Any:
        return self


def test_a_lease_of_several_ranks_comes_on_long_before_it_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tells nothing for long is given up; but what one rank's shards have, those of others may not."""
    coordinator = Coordinator()
    run_ranks(2, lambda comm: trained(comm, coordinator, monkeypatch))
    assert [report.HasField("progress") for report in coordinator.reports] == [False, False, False, True]
    assert coordinator.reports[-1].progress.samples == 30
    assert {(report.replica, report.incarnation) for report in coordinator.reports} == {(3, 7)}
    waited = [report.seconds["wait"] for report in coordinator.reports]
    assert waited[0] > 0
    assert waited == sorted(waited), "each report tells what the time went into"
    told = coordinator.reports[-1].wire
    assert (told.sent, told.received, told.residual) == (200, 10 + 11, 1.0), "of both ranks"


@pytest.mark.parametrize(("lost", "told"), [((0, 4), 4), ((5, 5), 5), ((3, 0), 3)])
def test_what_a_shard_of_any_rank_lost_is_told_once(
    lost: tuple[int, int], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator()
    run_ranks(2, lambda comm: trained(comm, coordinator, monkeypatch, lost[comm.rank]))
    assert coordinator.reports[-1].progress.lost == told
