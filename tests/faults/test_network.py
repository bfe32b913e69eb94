"""Each kind of fault does to a stream what its name says, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import push_to_wire
from tests.faults.invariants import check_vector
from tests.faults.network import Network, is_opening
from tests.faults.plan import Fault, Kind, Plan, Way
from tests.faults.shards import JOB, SGD, Served, Shards

pytestmark = pytest.mark.processes

WHO = Pusher(1, 9)
SEGMENTS = 6


class Client:
    """A client of one shard, at the level of messages, behind a network with one fault."""

    def __init__(self, shards: Shards, *faults: Fault) -> None:
        (self.shard,) = (shard for shard in shards.shards if isinstance(shard, Served))
        self.network = Network(Plan(None, faults))
        address = self.network.places("a", shards.placement).places[0].address
        self.channel = self.network.open_channel(address)
        self.stub = stubs.ParametersStub(self.channel)
        self.target = wire.Target(job=JOB, shard_epoch=self.shard.place.shard_epoch)

    def close(self) -> None:
        self.network.settle()
        self.channel.close()

    def messages(self, sequence: int = 1) -> Iterator[wire.PushRequest]:
        opening = push_to_wire(Push(WHO, sequence, np.float32(1)), self.target, SGD)
        opening.segments = SEGMENTS
        yield wire.PushRequest(opening=opening)
        for index in range(SEGMENTS):
            data = np.full(3, index + 1, np.float32).tobytes()
            yield wire.PushRequest(segments=[segments.Segment(index=index, length=3, data=data)])

    def push(self, sequence: int = 1) -> list[wire.PushAcknowledgement]:
        return [reply.acknowledgement for reply in self.stub.Push(self.messages(sequence))]

    def pull(self) -> list[int]:
        return [segment.index for reply in self.pulling() for segment in reply.segments]

    def pulling(self) -> Any:
        """A stream with one request, whose answers are read bit by bit."""
        return self.stub.Pull(iter([wire.PullRequest(target=self.target, vector=PARAMETERS, segments=range(SEGMENTS))]))

    @property
    def applied(self) -> list[int]:
        """Segments that have a push, in the order they got it."""
        return [segment for segment, _, _ in self.shard.applied]


@pytest.fixture(autouse=True)
def _a_message_for_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)


@pytest.fixture
def client(serve: Callable[..., Shards]) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def make(*faults: tuple[Way, int, Kind, float]) -> Client:
        made.append(Client(serve((SEGMENTS,)), *(Fault("a.0", *fault) for fault in faults)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def broken(call: Callable[[], Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "as planned" in (caught.value.details() or "")


def test_where_nothing_is_planned_nothing_happens(client: Callable[..., Client]) -> None:
    one = client((Way.PUSH, 99, Kind.DROP, 0))
    assert one.push()[-1].acknowledged == SEGMENTS
    assert one.pull() == list(range(SEGMENTS))
    assert not one.network.met


@pytest.mark.parametrize("at", range(1 + SEGMENTS))
def test_a_stream_cut_before_a_message_never_brings_it(client: Callable[..., Client], at: int) -> None:
    one = client((Way.PUSH, at, Kind.CUT_BEFORE, 0))
    broken(one.push)
    assert set(one.applied) <= set(range(at - 1))
    assert one.push()[-1].acknowledged == SEGMENTS
    assert sorted(one.applied) == list(range(SEGMENTS)), "and what came before was not applied twice"


@pytest.mark.parametrize("at", range(1, 1 + SEGMENTS))
def test_a_stream_cut_after_a_message_has_brought_it(client: Callable[..., Client], at: int) -> None:
    one = client((Way.PUSH, at, Kind.CUT_AFTER, 0))
    broken(one.push)
    assert one.applied == list(range(at))
    assert one.push()[-1].duplicates == at


def test_a_lost_answer_hides_a_push_that_was_applied(client: Callable[..., Client]) -> None:
    one = client((Way.PUSH, 2, Kind.CUT_ANSWER, 0))
    broken(one.push)
    assert one.applied == list(range(SEGMENTS))
    assert one.push()[-1].duplicates == SEGMENTS


def test_dropped_message_is_detected_by_timeout(client: Callable[..., Client]) -> None:
    one = client((Way.PUSH, 3, Kind.DROP, 0))
    call = one.stub.Push(one.messages())
    patience = threading.Timer(0.2, call.cancel)
    patience.start()
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    patience.join()
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    assert set(one.applied) <= {0, 1}


def test_a_repeated_push_is_applied_once(client: Callable[..., Client]) -> None:
    one = client((Way.PUSH, 4, Kind.REPEAT, 0))
    ours = one.push()[-1].duplicates
    one.network.settle()
    assert sorted(one.applied) == list(range(SEGMENTS))
    assert one.shard.stub.Stats(wire.StatsRequest(job=JOB)).duplicates == 4, "four segments went twice"
    assert ours <= 4


def test_a_late_push_comes_after_its_successor(client: Callable[..., Client]) -> None:
    one = client((Way.PUSH, 4, Kind.LATE, 1 + SEGMENTS))
    broken(one.push)
    assert one.push()[-1].acknowledged == SEGMENTS
    assert one.push(2)[-1].duplicates == 0
    one.network.settle()
    assert one.shard.stub.Stats(wire.StatsRequest(job=JOB)).duplicates >= 4
    assert len(one.applied) == 2 * SEGMENTS


def test_late_message_arrives_at_settle(client: Callable[..., Client]) -> None:
    one = client((Way.PUSH, 4, Kind.LATE, 1_000))
    broken(one.push)
    before = set(one.applied)
    one.network.settle()
    assert before < set(one.applied) == set(range(4))


def test_a_pull_breaks_and_stands_still(client: Callable[..., Client]) -> None:
    one = client((Way.PULL, 2, Kind.CUT_BEFORE, 0), (Way.PULL, 3 + SEGMENTS, Kind.DELAY, 0.001))
    broken(one.pull)
    assert one.pull() == list(range(SEGMENTS))
    assert one.pull() == list(range(SEGMENTS))
    assert one.network.met == {Kind.CUT_BEFORE: 1, Kind.DELAY: 1}


def test_a_dropped_pull_is_found_out_by_patience_alone(client: Callable[..., Client]) -> None:
    one = client((Way.PULL, 2, Kind.DROP, 0))
    call = one.pulling()
    patience = threading.Timer(0.2, call.cancel)
    patience.start()
    assert [segment.index for _ in range(2) for segment in next(call).segments] == [0, 1]
    broken(lambda: next(call))
    patience.join()


@pytest.mark.parametrize("kind", [Kind.CUT_BEFORE, Kind.CUT_ANSWER, Kind.REPEAT, Kind.LATE])
def test_lost_late_or_repeated_command_is_applied_once(client: Callable[..., Client], kind: Kind) -> None:
    """Its sender repeats it under its number until it hears an answer."""
    one = client((Way.CALL, 0, kind, 0))
    one.push()
    command = wire.Command(leader_epoch=1, id=1_000)
    request = wire.ConfigureRequest(command=command, forgotten=[segments.Pusher(replica=1, incarnation=9)])
    if kind is Kind.REPEAT:
        one.stub.Configure(request)
    else:
        broken(lambda: one.stub.Configure(request))
        if kind is Kind.CUT_BEFORE:
            assert one.shard.stub.Stats(wire.StatsRequest(job=JOB, ledgers=True)).ledgers
        one.stub.Configure(request)
    one.network.settle()
    assert WHO.incarnation not in {
        row.pusher.incarnation for row in one.shard.stub.Stats(wire.StatsRequest(job=JOB, ledgers=True)).ledgers
    }
    assert one.network.met == {kind: 1}


def test_an_opening_is_known_by_name_and_in_bytes() -> None:
    segment = wire.PushRequest(segments=[segments.Segment(index=3)])
    opening = wire.PushRequest(opening=wire.PushOpening(sequence=3), segments=segment.segments)
    assert [is_opening(message) for message in (opening, segment)] == [True, False]
    assert [is_opening(message.SerializeToString()) for message in (opening, segment)] == [True, False]


def test_two_links_have_faults_of_their_own(serve: Callable[..., Shards]) -> None:
    shards = serve((2, 2))
    network = Network(Plan(None, (Fault("a.1", Way.CALL, 0, Kind.CUT_BEFORE),)))
    for name, fails in (("a", [False, True]), ("b", [False, False])):
        for place, lost in zip(network.places(name, shards.placement).places, fails, strict=True):
            with network.open_channel(place.address) as channel:
                stub = stubs.ParametersStub(channel)
                if lost:
                    broken(lambda stub=stub: stub.Stats(wire.StatsRequest(job=JOB)))  # type: ignore[misc]
                assert stub.Stats(wire.StatsRequest(job=JOB)).segments == 2
    check_vector(shards.read(), np.zeros(12, np.float32))
