"""Followers on the host of the workers: they apply pushes from the workers' memory, in the leader's order."""

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.shared_memory import block_of
from dbelief.core.placement import Fetch
from dbelief.core.push import Push
from dbelief.errors import Rejected, RuntimeFailure
from dbelief.rpc.client.socket_stream import SocketStream
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb.segments_pb2 import SharedArray
from dbelief.rpc.server import auth
from dbelief.rpc.wire.convert import pusher_to_wire
from ps_server.replication import link
from ps_server.replication.migration import Migration
from ps_server.rpc import upload
from ps_server.rpc.pull import PullHandler
from ps_server.rpc.servicer import ShardService
from ps_server.store import concurrency
from ps_server.store.journal import PushRecord
from tests.examples import examples
from tests.ps_server.replication.chained import Chained
from tests.ps_server.servers import A, B, leased, status, wait_until
from tests.threads import at_once

pytestmark = pytest.mark.processes


class Watched:
    """What followers apply: whether its numbers were in shared memory; and messages that came over local streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared: list[bool] = []
        self.local = 0
        apply, post = Migration.apply, SocketStream.post

        def applies(migration: Migration, record: Any) -> None:
            if isinstance(record, PushRecord):
                self.shared.append(block_of(record.values) is not None)
            apply(migration, record)

        def posts(stream: SocketStream, request: bytes) -> None:
            self.local += 1
            post(stream, request)

        monkeypatch.setattr(Migration, "apply", applies)
        monkeypatch.setattr(SocketStream, "post", posts)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


class Held:
    """Followers that hold each record from now on: whether one has been reached, and an event that releases them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.released, apply = threading.Event(), threading.Event(), Migration.apply

        def applies(migration: Migration, record: Any) -> None:
            self.reached.set()
            assert self.released.wait(60)
            apply(migration, record)

        monkeypatch.setattr(Migration, "apply", applies)


def whole(job: Chained) -> None:
    for number in range(2):
        job.whole(number)


def assert_copies_are_equal(job: Chained) -> None:
    """Every follower has its leader's bits, versions and ledger."""
    for number, (service, _, _) in enumerate(job.followers):
        copies = service.controller._migration._received  # type: ignore[union-attr]
        segments = job.services[number].controller.require_shard().segments
        assert copies.keys() == segments.keys()
        for index, segment in segments.items():
            np.testing.assert_array_equal(copies[index].vectors["w"], segment.vectors["w"])
            assert (copies[index].version, copies[index].ledger.last) == (segment.version, segment.ledger.last)


# -- the same numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "elastic"])
def test_pushes_are_applied_from_the_workers_memory(
    rule: str, large: bool, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`large`: segments are sent while others are applied, and the threads of leader and follower share them."""
    if large:
        monkeypatch.setattr(link, "EARLY_BYTES", 1)
        monkeypatch.setattr(concurrency, "MIN_BYTES_PER_THREAD", 1)
        monkeypatch.setattr(upload, "MIN_BYTES_PER_THREAD", 1)
    with closing(Chained(rule)) as job:
        whole(job)
        client = job.client(A)
        values, out = client.array(job.placement.size), client.array(job.placement.size)
        for number in range(1, 6):
            values[:] = number
            push = leased(Push(A, number, np.float32(0.5)))
            if rule == "elastic":
                client.exchange(values, out, job.held(0), push)
            else:
                client.push(values, job.held(0), push)
        assert_copies_are_equal(job)
        assert watched.shared == 5 * len(job.placement.spans) * [True]
        assert watched.local >= 2 * 5  # and the openings


ways = st.lists(st.tuples(st.sampled_from([A, B]), st.booleans()), min_size=1, max_size=12)


@given(ways)
@examples(12)
def test_messages_of_both_ways_keep_their_order(orders: list[tuple[Any, bool]]) -> None:
    """A push through shared memory after one over TCP, and the other way: the follower refuses a wrong order."""
    with closing(Chained("adagrad")) as job:
        whole(job)
        clients = {(who, shared): job.client(who, shares_memory=shared) for who in (A, B) for shared in (True, False)}
        numbers = {A: 0, B: 0}
        for who, shared in orders:
            client = clients[who, shared]
            values = client.array(job.placement.size)
            numbers[who] += 1
            values[:] = numbers[who] * who.replica
            client.push(values, job.held(0), leased(Push(who, numbers[who], np.float32(0.1))))
        assert_copies_are_equal(job)


@pytest.mark.parametrize("others_share", [False, True])
def test_pushers_at_the_same_time(others_share: bool, watched: Watched) -> None:
    def pushes(by: tuple[Any, bool]) -> None:
        who, shared = by
        client = job.client(who, shares_memory=shared)
        values = client.array(job.placement.size)
        for number in range(1, 41):
            values[:] = who.replica
            client.push(values, job.held(0), Push(who, number, np.float32(1)))

    with closing(Chained("sgd")) as job:
        whole(job)
        at_once(pushes, ((A, True), (B, others_share)))
        assert_copies_are_equal(job)
        np.testing.assert_array_equal(job.read(), -40.0 * (A.replica + B.replica))
        assert any(watched.shared)
        assert all(watched.shared) == others_share


@pytest.mark.parametrize("shared", [True, False])
def test_a_turn_ends_before_the_wait_for_the_follower(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    with closing(Chained("sgd")) as job:
        whole(job)
        held = Held(monkeypatch)
        client = job.client(A, shares_memory=shared)
        values = client.array(job.placement.size)
        push = threading.Thread(target=client.push, args=(values, job.held(0), Push(A, 1, np.float32(1))))
        push.start()
        try:
            assert held.reached.wait(60)
            turn = job.services[0].controller.turn
            assert turn.acquire(timeout=60), "the push waits outside its turn"
            turn.release()
        finally:
            held.released.set()
            push.join(60)
        assert not push.is_alive()


def test_parameters_are_written_before_the_wait_for_the_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the turn of the push; and they are sent after it."""
    with closing(Chained("sgd")) as job:
        whole(job)
        client = job.client(A)
        values, out = client.array(job.placement.size), client.array(job.placement.size)
        client.pull(out, job.held())
        held = Held(monkeypatch)
        values[:], out[:] = 1, 5
        fetch = Fetch(out, job.held(), 1)
        push = threading.Thread(
            target=client.push, args=(values, job.held(0), Push(A, 1, np.float32(1))), kwargs={"fetch": fetch}
        )
        push.start()
        try:
            assert held.reached.wait(60)
            wait_until(lambda: bool((out == -1).all()))
            assert push.is_alive()
            assert (fetch.versions == -1).all()
        finally:
            held.released.set()
            push.join(60)
        assert not push.is_alive()
        assert (fetch.versions == 1).all()


def test_a_fetch_that_fails_leaves_a_replicated_push_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(handler: PullHandler) -> Any:
        raise Rejected("cannot be read")
        yield b""

    with closing(Chained("sgd")) as job:
        whole(job)
        client = job.client(A)
        values, out = client.array(job.placement.size), client.array(job.placement.size)
        client.pull(out, job.held())
        values[:] = 1
        with monkeypatch.context() as patched:
            patched.setattr(PullHandler, "_written", fails)
            with pytest.raises(Rejected, match="cannot be read"):
                client.push(values, job.held(0), Push(A, 1, np.float32(1)), Fetch(out, job.held(), 1))
        np.testing.assert_array_equal(job.read(), -1.0)
        assert client.push(values, job.held(0), Push(A, 1, np.float32(1))).duplicates == len(job.placement.spans)
        assert_copies_are_equal(job)


def test_a_record_that_no_call_waits_for_is_acknowledged(watched: Watched) -> None:
    """Calls that wait read the acknowledgements of a local stream; here there is none."""
    with closing(Chained("sgd")) as job:
        whole(job)
        client = job.client(A)
        client.push(client.array(job.placement.size), job.held(0), Push(A, 1, np.float32(1)))
        controller = job.services[0].controller
        messages = controller._messages
        assert messages is not None
        assert messages.is_local
        before = watched.local
        controller.require_shard().append_empty_record()
        controller.replicate()
        assert watched.local == before + 1
        wait_until(lambda: not messages.waits, "its acknowledgement")
        assert controller.link.confirmed


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_a_shard_that_ends_acknowledges_nothing_that_its_follower_lacks(
    monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """As one that was suspended, and learns that its follower leads: its threads end after its server has closed."""
    at_the_follower, go_on = threading.Event(), threading.Event()

    def refuses(migration: Migration, record: Any) -> None:
        at_the_follower.set()
        assert go_on.wait(60)
        raise Rejected("this shard leads now")

    job = Chained("sgd")
    try:
        whole(job)
        monkeypatch.setattr(Migration, "apply", refuses)
        client = job.client(A, shares_memory=shared, deadline_s=1.0, refresh=lambda: job.placement)
        outcome: list[BaseException | None] = []

        def pushes() -> None:
            try:
                client.push(client.array(job.placement.size), job.held(0), Push(A, 1, np.float32(1)))
            except RuntimeFailure as error:
                outcome.append(error)
            else:
                outcome.append(None)

        push = threading.Thread(target=pushes)
        push.start()
        assert at_the_follower.wait(60)
        for service in job.services:
            service.controller.link.close()
        push.join(60)
        assert "this shard ends" in str(outcome)
    finally:
        go_on.set()
        job.close()


def test_memory_of_a_failed_push_is_left_to_the_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The push has failed and the worker uses its array again, while the follower has yet to read it."""
    held, apply = threading.Event(), Migration.apply

    def applies(migration: Migration, record: Any) -> None:
        if isinstance(record, PushRecord) and record.push.sequence == 2:
            assert held.wait(60)
        apply(migration, record)

    monkeypatch.setattr(Migration, "apply", applies)
    job = Chained("sgd")
    try:
        whole(job)
        for service in job.services:
            service.controller.deadline_s = 0.3
        client = job.client(A, deadline_s=1.5, refresh=lambda: job.placement)
        values = client.array(job.placement.size)
        values[:] = 1.0
        client.push(values, job.held(0), Push(A, 1, np.float32(1)))
        with pytest.raises(RuntimeFailure, match="has not acknowledged it yet"):
            client.push(values, job.held(0), Push(A, 2, np.float32(1)))
        values[:] = 1e9
        held.set()
        for number in range(2):
            chain = job.services[number].controller.link
            wait_until(lambda chain=chain: chain._acknowledged == chain.appended, "the follower to have it")  # type: ignore[misc]
        assert_copies_are_equal(job)
        np.testing.assert_array_equal(job.read(), -2.0)
    finally:
        held.set()
        job.close()


def test_a_follower_that_is_replaced_gets_the_memory_too(watched: Watched) -> None:
    with closing(Chained("sgd")) as job:
        whole(job)
        client = job.client(A, refresh=lambda: job.placement)
        values = client.array(job.placement.size)
        values[:] = 1.0
        client.push(values, job.held(0), Push(A, 1, np.float32(1)))
        for number in range(2):
            job.promote(number)
            job.followers[number] = job.follow(number)
        whole(job)
        watched.shared.clear()
        for number in (2, 3):
            client.push(values, job.held(0), Push(A, number, np.float32(1)))
        assert any(watched.shared)
        assert_copies_are_equal(job)
        np.testing.assert_array_equal(job.read(), -3.0)


def test_blocks_of_a_worker_that_has_ended_are_released() -> None:
    with closing(Chained("sgd")) as job:
        whole(job)
        client = job.client(A)
        values = client.array(job.placement.size)
        client.push(values, job.held(0), Push(A, 1, np.float32(1)))
        follower: ShardService = job.followers[0][0]
        assert follower._attached._bytes > 0
        del values
        client.close()
        leader = job.services[0]
        wait_until(lambda: leader._attached._bytes == 0, "the leader to have detached them")
        job.configure(0, forgotten=[pusher_to_wire(A)])
        wait_until(lambda: follower._attached._bytes == 0, "the follower to have detached them")


# -- permissions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "method", "refused"), [("worker", "Carry", True), ("ps", "Push", True), ("ps", "Carry", False)]
)
def test_a_local_stream_needs_the_permission_for_its_method(
    monkeypatch: pytest.MonkeyPatch, role: str, method: str, refused: bool
) -> None:
    monkeypatch.setattr(auth, "_certified", lambda context: [role])
    with closing(Chained("sgd")) as job:
        target = job.target(0)
        stream = wire.LocalStream(name="0" * 32, token=bytes(32), method=method)
        (reply,) = job.stubs[0].Attach(iter([wire.AttachRequest(target=target, stream=stream)]))
        assert (f"the caller's certificate for {role}" in reply.refusal) == refused, reply
        assert reply.refusal  # no process listens


def test_a_reference_to_memory_that_was_not_attached_is_refused() -> None:
    with closing(Chained("sgd")) as job:
        whole(job)
        channel, _, _ = job.extra[0]
        epoch = job.followers[0][2]
        messages = [
            wire.CarryRequest(opening=wire.CarryOpening(job="digits", shard_epoch=epoch, follow=True)),
            wire.CarryRequest(push=wire.PushOpening(vector="w", shared=SharedArray(block="0" * 32))),
        ]
        _, why = status(lambda: list(stubs.ParametersStub(channel).Carry(iter(messages))))
        assert "has no block" in why
