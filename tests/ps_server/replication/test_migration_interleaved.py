"""Migration beside concurrent pushes and late streams: forced orders of events."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import Any

import numpy as np
import pytest

from dbelief.core.push import Push, Pusher
from dbelief.errors import Moved, Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.telemetry.metrics import Metrics
from ps_server.controller import ShardController
from ps_server.replication.migration import Migration
from ps_server.replication.segment_state import SegmentState
from ps_server.store.concurrency import TimedLock
from ps_server.store.journal import ForgetRecord
from tests.ps_server.servers import A, B

from .test_migration import LENGTH, SPANS, Pushers, over_the_wire


class Preempted:
    """A segment's lock at which the thread "pusher" stands still at its n-th visit, until it may go on."""

    def __init__(self, visit: int) -> None:
        self.arrived, self.goes_on = threading.Event(), threading.Event()
        self._lock, self._left = TimedLock(), visit

    def acquire(self) -> None:
        if threading.current_thread().name == "pusher":
            self._left -= 1
            if not self._left:
                self.arrived.set()
                assert self.goes_on.wait(60.0)
        self._lock.acquire()

    __enter__ = acquire

    def release(self, *raised: object) -> None:
        self._lock.release()

    __exit__ = release


def test_round_closes_where_the_segment_is() -> None:
    """The pusher whose gradient completes the round is preempted between staging it and closing the round."""
    pushers = Pushers("sgd", 0)
    giver, taker = pushers.shard(SPANS[:1]), pushers.shard(())
    giver.push(Push(Pusher(0, 1), 1, assign=True), 0, np.zeros(LENGTH, np.float32))
    giver.make_ready()
    lock = Preempted(2)
    giver.segments[0].lock = lock  # type: ignore[assignment]
    gradient, first = np.ones(LENGTH, np.float32), Push(A, 1, np.float32(1.0))
    giver.push(first, 0, gradient)
    last = dataclasses.replace(first, pusher=B)
    pusher = threading.Thread(target=giver.push, args=(last, 0, gradient), name="pusher")
    pusher.start()
    assert lock.arrived.wait(60.0)
    moves, comes = Migration(giver), Migration(taker)

    def send(carried: SegmentState) -> None:
        lock.goes_on.set()
        pusher.join(60.0)
        comes.receive(over_the_wire(carried))

    moves.send([0], "the other", send)
    assert not pusher.is_alive()
    comes.commit([0])
    moves.commit([])
    assert taker.segments[0].rounds == 1
    np.testing.assert_array_equal(taker.segments[0].vectors["w"], -1.0)


def test_an_assignment_ends_the_stream_of_the_former_leader() -> None:
    """A shard is restored in its follower's process: what its former leader still sends must not be acknowledged."""
    life = ShardController(Metrics("ps"), 10.0, None)
    rule = segments.Rule(name="sgd")

    def assign(number: int) -> None:
        command = wire.Command(leader_epoch=1, id=number)
        assignment = wire.Assignment(rule=rule)
        life.configure(wire.ConfigureRequest(command=command, job="digits", shard_epoch=number, assignment=assignment))

    assign(1)
    stream = life.migration_for(wire.CarryOpening(job="digits", shard_epoch=1))
    stream.receive(SegmentState(span=SPANS[0], version=1, born=0, applied=1, rounds=0, lost=0))
    stream.apply(ForgetRecord(0, 1, frozenset()))
    assign(2)
    with pytest.raises(Rejected, match="a journal record for a segment that was not received"):
        stream.apply(ForgetRecord(0, 1, frozenset()))
    with pytest.raises(Moved, match="of an earlier move"):
        stream.receive(SegmentState(span=SPANS[0], version=1, born=0, applied=1, rounds=0, lost=0))
    life.close()


def test_stale_migration_stream_is_refused() -> None:
    """Its giver was stopped half-way and replaced; what it still sends must not replace what its successor gave."""
    life = ShardController(Metrics("ps"), 10.0, None)
    numbers = itertools.count(1)

    def configure(**fields: Any) -> wire.Command:
        command = wire.Command(leader_epoch=1, id=next(numbers))
        life.configure(wire.ConfigureRequest(command=command, **fields))
        return command

    def opening(command: wire.Command | None) -> wire.CarryOpening:
        return wire.CarryOpening(job="digits", shard_epoch=3, command=command)

    def segment(version: int) -> SegmentState:
        return SegmentState(span=SPANS[0], version=version, born=0, applied=version, rounds=0, lost=0)

    rule = segments.Rule(name="sgd")
    configure(job="digits", shard_epoch=3, assignment=wire.Assignment(rule=rule))
    stale = wire.Command(leader_epoch=1, id=next(numbers))
    stopped = life.migration_for(opening(stale))
    stopped.receive(segment(1))
    configure(holdings=wire.Holdings())  # the move failed
    successor = life.migration_for(opening(wire.Command(leader_epoch=1, id=next(numbers))))
    successor.receive(segment(2))
    with pytest.raises(Moved, match="segment 0: the stream that brings it is of an earlier move"):
        stopped.receive(segment(1))
    with pytest.raises(Moved, match="command 2 is over: a later one has said which segments it holds"):
        life.migration_for(opening(stale))
    configure(holdings=wire.Holdings(runs=[segments.SegmentRun(first=0, count=1)]))
    assert life.require_shard().versions() == [2]
    life.migration_for(opening(None))  # to follow, no command of a move is needed
    life.close()
