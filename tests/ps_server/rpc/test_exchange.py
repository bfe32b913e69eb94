"""Exchanges with shards over gRPC: a worker's own weights there, the centre as it was before back, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.core.push import EXCHANGE_WINDOW, Push, Pusher
from dbelief.errors import Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk
from ps_server.rpc.servicer import ShardService
from tests.ps_server.servers import A, B, Job, status

pytestmark = pytest.mark.processes

HALF = np.float32(0.5)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Twenty segments on each of two shards, each in a message of its own: more than the window holds."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 32)
    made = Job(rule="elastic")
    yield made
    made.close()


def drawn(job: Job, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 9, job.placement.size).astype(np.float32)


def test_exchange_returns_the_previous_centre(job: Job) -> None:
    first, second = drawn(job, 1), drawn(job, 2)
    a, b, before = job.client(A), job.client(B), job.full(np.nan)
    versions = job.held(0)
    assert a.exchange(first, before, versions, Push(A, 1, HALF)).staleness == 0
    np.testing.assert_array_equal(before, job.full(0.0))
    np.testing.assert_array_equal(job.read(), first / 2)
    b.exchange(second, before, job.held(0), Push(B, 1, HALF))
    np.testing.assert_array_equal(before, first / 2)
    pushed = a.exchange(first, before, versions, Push(A, 2, HALF))
    assert pushed.staleness == 1, "one exchange of another between two of this one"
    np.testing.assert_array_equal(before, first / 4 + second / 2)


class Breaks:
    """Lets a shard's exchanges break after so many answers each, as often as there are numbers."""

    def __init__(self, after: list[int]) -> None:
        self.after = after

    def __call__(self, service: ShardService) -> None:
        whole = service.Exchange

        def exchange(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            left = self.after.pop(0) if self.after else 10**9
            for answer in whole(messages, context):
                if not left:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "a line that broke")
                left -= 1
                yield answer

        service.Exchange = exchange  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [[0], [1], [EXCHANGE_WINDOW], [19], [3, 0, 7, 5]])
def test_interrupted_exchange_resumes_with_the_same_answers(after: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", 32)
    job, values = Job(rule="elastic", prepare=Breaks(after)), None
    try:
        values, before = drawn(job, 1), job.full(np.nan)
        client = job.client(A)
        for number in (1, 2):
            client.exchange(values, before, job.held(0), Push(A, number, HALF))
            np.testing.assert_array_equal(before, values * np.float32(1 - 0.5 ** (number - 1)))
            np.testing.assert_array_equal(job.read(), values * np.float32(1 - 0.5**number))
        assert not after, "it broke as often as it should"
    finally:
        job.close()


def test_exchange_with_a_recovered_shard_reports_losses(job: Job, tmp_path: Path) -> None:
    values, before = drawn(job, 1), job.full(np.nan)
    client = job.client(A, refresh=lambda: job.placement)
    client.exchange(values, before, job.held(0), Push(A, 1, HALF))
    job.snapshot(tmp_path)
    for number in (2, 3):
        client.exchange(values, before, job.held(0), Push(A, number, HALF))
    job.restart(0, tmp_path)
    job.configure(0, ready=True)
    pushed = client.exchange(values, before, job.held(0), Push(A, 4, HALF))
    assert pushed.lost == 2
    there = job.placement.run(job.placement.places[0])[-1].stop
    np.testing.assert_array_equal(before[:there], values[:there] / 2)
    np.testing.assert_array_equal(before[there:], values[there:] * np.float32(1 - 0.5**3))


def test_invalid_exchange_is_refused_without_effect(job: Job) -> None:
    def told(*messages: wire.PushRequest) -> str:
        code, reason = status(lambda: list(job.stubs[0].Exchange(iter(messages))))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        return reason

    opening = job.opening(Push(A, 1, HALF))
    opening.opening.segments = 1
    assert "an exchange begins with its opening and some segments" in told(opening)
    assert "an exchange begins with its opening" in told(job.part(0))
    wrong = wire.PushRequest(opening=opening.opening)
    wrong.MergeFrom(job.part(0, length=7, data=np.ones(7, np.float32).tobytes()))
    assert "segment 0: 7 numbers of 8 to exchange" in told(wrong)
    more = wire.PushRequest(opening=opening.opening)
    for index in (0, 1):
        more.MergeFrom(job.part(index))
    assert "an exchange of 1 segments went on with segment 0" in told(more)
    rule = wire.PushRequest(opening=opening.opening)
    rule.opening.rule.name = "sgd"
    assert "an exchange by the rule 'sgd', and the job's is 'elastic'" in told(rule)
    np.testing.assert_array_equal(job.read(), job.full(0.0))


def test_arrays_of_an_exchange_do_not_overlap(job: Job) -> None:
    room = np.zeros(job.placement.size + 1, np.float32)
    with pytest.raises(ValueError, match="overlap"):
        job.client(A).exchange(room[1:], room[:-1], job.held(0), Push(A, 1, HALF))
    np.testing.assert_array_equal(job.read(), job.full(0.0))


def test_as_many_answers_as_may_be_lost_are_given_again(job: Job) -> None:
    """All that a sender may be ahead with was answered, and nothing of it came through."""
    shard: Any = job.services[0].controller.require_shard()
    push = Push(Pusher(3, 13), 1, HALF)
    parts = [(span.index, np.ones(8, np.float32)) for span in job.placement.spans[:EXCHANGE_WINDOW]]
    told, again = ([shard.exchange(push, [part]) for part in parts] for _ in range(2))
    for (before, _, _), (after, duplicates, _) in zip(told, again, strict=True):
        assert duplicates == 1
        assert before[0][0] == after[0][0]
        np.testing.assert_array_equal(before[0][1], after[0][1])


def test_an_answer_of_long_ago_is_not_made_up(job: Job) -> None:
    """A sender that breaks the protocol's promise and repeats what it was answered more than a window ago."""
    shard: Any = job.services[0].controller.require_shard()
    push = Push(Pusher(3, 13), 1, HALF)
    parts = [(span.index, np.ones(8, np.float32)) for span in job.placement.run(job.placement.places[0])]
    for part in parts:
        shard.exchange(push, [part])
    first = len(parts) - EXCHANGE_WINDOW
    assert first > 0
    shard.exchange(push, [parts[-1]])
    with pytest.raises(Rejected, match="segment 0: exchange 1 was answered before, and long ago"):
        shard.exchange(push, [parts[0]])


def test_an_exchange_in_a_set_whose_reply_was_lost_gets_the_present_centre(tmp_path: Path) -> None:
    with closing(Job(count=2, rule="elastic")) as job:
        before = job.full(np.nan)
        job.client(A).exchange(job.full(8.0), before, job.held(0), Push(A, 1, HALF))
        job.snapshot(tmp_path)
        for number in range(2):
            job.restart(number, tmp_path)
            job.configure(number, ready=True)
        for service in job.services:
            shard: Any = service.controller.require_shard()
            parts = [(index, np.zeros(segment.span.length, np.float32)) for index, segment in shard.segments.items()]
            answers, duplicates, _ = shard.exchange(Push(A, 1, HALF, base=1), parts)
            assert duplicates == len(parts)
            for _, centre in answers:
                np.testing.assert_array_equal(centre, 4.0)
        np.testing.assert_array_equal(job.read(), 4.0)


def test_exchange_at_restored_shards_waits_for_no_round_that_they_lost(tmp_path: Path) -> None:
    """Both replicas have passed rounds 0 to 2, which the set does not hold, and send them to nobody again."""
    with closing(Job(count=4, staleness=0, rule="elastic")) as job:
        job.snapshot(tmp_path)
        members = wire.Membership(member_epoch=1, rounds=[wire.MembersFrom(clock=0, replicas=[A.replica, B.replica])])
        for number in range(2):
            job.restart(number, tmp_path, staleness=0)
            job.configure(number, membership=members)
            job.configure(number, ready=True)
        before = {who: job.full(np.nan) for who in (A, B)}

        def exchange(who: Pusher, own: float) -> None:
            push = Push(who, 4, np.float32(0.25), clock=3, base=4)
            job.client(who, deadline_s=8.0).exchange(job.full(own), before[who], job.held(0), push)

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(exchange, who, own) for who, own in ((A, 4.0), (B, 8.0))]:
                done.result(60)
        for centre in before.values():
            np.testing.assert_array_equal(centre, 0.0)
        np.testing.assert_array_equal(job.read(), 3.0)
