"""What a member knows about how long the coordinator keeps it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from dbelief.errors import Unavailable
from dbelief.process.runtime import runtime
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MembershipClient, MemberView
from dbelief.rpc.pb import coordination_pb2 as wire


class Coordinator:
    """Notes when it is called, and answers that the caller is a member, or not."""

    def __init__(self) -> None:
        self.member, self.uncertain = True, False
        self.called_s = 0.0

    def call(self, method: str, request: Any, patience_s: float | None = None) -> wire.BeatReply:
        self.called_s = runtime.monotonic()
        return wire.BeatReply(member=self.member, uncertain=self.uncertain)


def test_a_heartbeat_counts_from_when_it_was_sent_and_only_if_the_member_is_known() -> None:
    coordinator = Coordinator()
    member = MemberView(cast("CoordinatorClient", coordinator), wire.ROLE_SHARD, 0, 1, 0)
    before_s = runtime.monotonic()
    member.beat()
    assert before_s <= member.confirmed_s <= coordinator.called_s
    known_s, coordinator.uncertain = member.confirmed_s, True
    member.beat()
    assert (member.confirmed_s, member.over) == (known_s, False)
    coordinator.member = False
    member.beat()
    assert member.confirmed_s == known_s
    assert member.over


@pytest.mark.parametrize("answers", [True, False])
def test_a_member_that_leaves_is_unconfirmed_before_its_last_heartbeat_is_sent(answers: bool) -> None:
    """The coordinator may promote a follower before the reply arrives, or without one."""
    seen_s: list[float] = []

    class Leaving(Coordinator):
        def call(self, method: str, request: Any, patience_s: float | None = None) -> wire.BeatReply:
            seen_s.append(member.confirmed_s)
            if request.leaving and not answers:
                raise Unavailable("the reply was lost")
            return super().call(method, request, patience_s)

    member = MemberView(cast("CoordinatorClient", Leaving()), wire.ROLE_SHARD, 0, 1, 0)
    member.beat()
    assert member.confirmed_s > -math.inf
    with nullcontext() if answers else pytest.raises(Unavailable):
        member.beat(leaving=True, reason="signal")
    assert (seen_s[-1], member.confirmed_s) == (-math.inf, -math.inf)


class Timed:
    """A coordinator, and the clock of a member: every wait for the next heartbeat lets its time pass.

    Parameters
    ----------
    calls_s
        Times at which the member makes another call.
    silent_from_s
        From when it does not answer heartbeats.
    """

    def __init__(
        self,
        calls_s: list[float],
        state: wire.State.ValueType = wire.STATE_READY,
        every_s: float = 1.0,
        silent_from_s: float = math.inf,
    ) -> None:
        self._silent_from_s = silent_from_s
        self.now_s, self._calls_s, self._state, self._every_s = 0.0, calls_s, state, every_s
        self.beats_s: list[float] = []
        self.beat_now = False
        self.patience_s = 2.5
        runtime = SimpleNamespace(
            monotonic=lambda: self.now_s,
            random_id=lambda: 1,
            event=lambda: SimpleNamespace(wait=self._wait, set=lambda: None),
            condition=lambda: mock.MagicMock(),
            spawn=lambda call, name: None,
        )
        with mock.patch("dbelief.rpc.client.coordinator_client.runtime", runtime):
            self.member = MembershipClient(cast("CoordinatorClient", self), wire.ROLE_REPLICA, "job")
            self.member._keep_beating()

    def _wait(self, pause_s: float) -> bool:
        until_s = self.now_s + pause_s
        while self._calls_s and self._calls_s[0] < until_s:
            self.now_s = self._calls_s.pop(0)
            self.member.call("Report", wire.ReportRequest())
        self.now_s = until_s
        return until_s > 6.0

    def call(self, method: str, request: Any, patience_s: float | None = None) -> Any:
        if method == "Join":
            return wire.JoinReply(id=3, incarnation=7, heartbeat_timeout_s=4.0)
        if method == "Report":
            return wire.ReportReply(beat_now=self.now_s > 4.0)
        self.beats_s.append(self.now_s)
        if self.now_s >= self._silent_from_s:
            raise Unavailable("coordinator at there: Deadline Exceeded")
        return wire.BeatReply(member=True, state=self._state, beat_every_s=self._every_s)


def test_a_report_takes_the_place_of_a_heartbeat() -> None:
    assert Timed([]).beats_s == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert Timed([0.5, 0.75, 1.5, 3.75]).beats_s == [0.0, 2.5, 3.5, 4.75, 5.75]


def test_a_coordinator_that_does_not_count_reports_gets_every_heartbeat() -> None:
    assert Timed([0.5, 0.75, 1.5, 3.75], every_s=0.0).beats_s == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_report_of_a_removed_member_is_followed_by_a_heartbeat() -> None:
    assert Timed([4.5]).beats_s == [0.0, 1.0, 2.0, 3.0, 4.0, 4.5, 5.5]


def test_a_membership_ends_when_the_patience_with_a_silent_coordinator_does() -> None:
    silent = Timed([], silent_from_s=2.0)
    assert silent.beats_s == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert silent.member.lost == "coordinator at there: Deadline Exceeded (no answer for 3 s)"
    assert silent.member.over


def test_while_a_job_ends_every_heartbeat_is_sent() -> None:
    """Its reply has the state of the job, for which members wait."""
    assert Timed([0.5, 1.5, 2.5, 3.5], wire.STATE_CLOSING).beats_s[:5] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_calls_carry_the_processors_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    class Reads(Coordinator):
        def call(self, method: str, request: Any, patience_s: float | None = None) -> Any:
            sent.append(request)
            return super().call(method, request) if method == "Beat" else wire.ReportReply()

    member = MemberView(cast("CoordinatorClient", Reads()), wire.ROLE_REPLICA, 0, 1, 0)
    member.beat()
    member.call("Report", wire.ReportRequest())
    monkeypatch.setattr("dbelief.rpc.client.coordinator_client.METER_S", 0.0)
    member.call("Report", wire.ReportRequest())
    member.call("Lease", wire.LeaseRequest())
    member.call("Lease", wire.LeaseRequest(report=wire.ReportRequest()))
    assert [one.HasField("processors") for one in sent[:3]] == [True, False, True]
    assert not sent[3].HasField("report")
    carried = sent[4].report.processors
    assert carried.machine
    assert carried.cores > 0
    assert carried.answer_s > 0
