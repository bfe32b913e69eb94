"""What a member knows about how long the coordinator keeps it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, cast

import pytest

from dbelief.errors import Unavailable
from dbelief.process.runtime import runtime
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MemberView
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
