"""Limits of a shard's memory: refused requests create nothing, and existing state remains usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.core.vector_program import lincomb
from dbelief.errors import Rejected
from ps_server import programs
from ps_server.programs import ProgramExecutor
from ps_server.store import accumulator, admission, segment

Make = Callable[..., Any]


def test_named_vectors_have_an_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (segment, programs):
        monkeypatch.setattr(module, "MOST_VECTORS", 4)
    subject = make()
    for name in ("a", "b", "c"):
        subject.assign(1.0, name, Pusher(1, 11))
    before = subject.everything()
    with pytest.raises(Rejected, match="there are 4 named vectors already, and 'd' would be one more"):
        subject.assign(1.0, "d", Pusher(1, 11))
    executor = ProgramExecutor(subject.shard)
    with pytest.raises(Rejected, match="there are 4 named vectors already, and 'e' would be one more"):
        executor.run([lincomb("a", (1.0, PARAMETERS)), lincomb("e", (1.0, PARAMETERS))])
    assert subject.everything() == before
    executor.run([lincomb("a", (0.0, "a")), lincomb(PARAMETERS, (0.0, "a"))])
    executor.close()
    assert not subject.read("a").any()


def test_pushers_have_an_end_until_some_are_settled(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_PUSHERS", 2)
    subject = make()
    subject.shard._admission.pushers.clear()
    for replica in (1, 2):
        subject.push(Pusher(replica, 10 + replica), 1.0)
    before = subject.everything()
    with pytest.raises(Rejected, match="there are 2 pushers already"):
        subject.push(Pusher(3, 13), 1.0)
    assert subject.everything() == before
    subject.push(Pusher(1, 11), 1.0)  # who was let in stays in
    subject.shard.fence([12])
    subject.shard.forget([12])
    subject.sequences.clear()
    with pytest.raises(Rejected, match="is fenced"):
        subject.push(Pusher(2, 12), 1.0)  # who is refused takes no place
    subject.push(Pusher(3, 13), 1.0)


def test_rounds_that_wait_have_an_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MOST_ROUNDS", 3)
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, {1, 2})])
    for clock in range(3):
        subject.push(Pusher(1, 11), 1.0, clock=clock)
    with pytest.raises(Rejected, match="there are 3 rounds that wait already, and 3 would be one more"):
        subject.shard.push(Push(Pusher(1, 11), 4, clock=3), 0, np.ones(subject.spans[0].length, np.float32))


def test_refused_exchanges_leave_no_answers(make: Make) -> None:
    subject = make(rule="elastic")
    subject.shard.fence([7])
    weights = np.ones(subject.spans[0].length, np.float32)
    for replica in range(3):
        with pytest.raises(Rejected, match="is fenced"):
            subject.shard.exchange(Push(Pusher(replica, 7), 1, np.float32(0.5)), [(0, weights)])
    assert not subject.shard.answers._kept


def test_bundles_out_of_turn_have_an_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulator, "MOST_AHEAD", 2)
    subject = make((4,))
    subject.shard.ordered = True

    def send(number: int) -> None:
        subject.send(Push(Pusher(1, 11), 0, vector="accrued", clock=1, bundle=number), subject.full(1.0))

    for number in (3, 2):
        send(number)
    with pytest.raises(Rejected, match="there are 2 bundles that wait for their turn already, and 4 would be one more"):
        send(4)
    send(1)  # whose turn it is
    send(4)
    segment = subject.shard.segments[0]
    assert not segment.sum.waiting
    np.testing.assert_array_equal(segment.vectors["accrued"], 4.0)
