"""The servicer of a shard over real gRPC: refusals, commands, state, staleness."""

import dataclasses
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.checkpoint.shard_file import StoredSegment
from dbelief.core.push import Push, Pusher
from dbelief.errors import Moved, Rejected
from dbelief.rpc.channel import open_channel
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server
from dbelief.rpc.wire.convert import push_to_wire
from dbelief.telemetry.metrics import Metrics
from ps_server import snapshot
from ps_server.replication.migration import Migration
from ps_server.rpc.servicer import ShardService
from ps_server.store.shard import Shard
from tests.dbelief.process.test_atomic_file import files_end_at
from tests.ps_server.servers import INITIALISER, SGD, A, B, Job, status

pytestmark = pytest.mark.processes

# -- refusals ------------------------------------------------------------------------------------------------


def test_every_refusal_names_job_shard_and_segment(job: Job) -> None:
    good = Push(A, 1, np.float32(1))

    def push(*requests: wire.PushRequest) -> Callable[[], Any]:
        return lambda: list(job.stubs[1].Push(iter(requests)))

    def pull(**fields: Any) -> Callable[[], Any]:
        return lambda: job.pulled(1, **{"segments": [20], **fields})

    opening = job.opening(good, 1)
    elsewhere = wire.PushRequest(opening=push_to_wire(good, wire.Target(job="mnist", shard_epoch=6), SGD))
    later = wire.PushRequest(opening=push_to_wire(good, wire.Target(job="digits", shard_epoch=7), SGD))
    before = wire.PushRequest(opening=push_to_wire(good, wire.Target(job="digits", shard_epoch=4), SGD))
    for call, reason in {
        push(opening, job.part(20), job.part(3)): "segment 3 is not on this shard",
        push(opening, job.part(20, offset=1)): "segment 20: 8 numbers at 1 do not fit its 8",
        push(opening, job.part(20, data=b"123")): "segment 20: 3 bytes are not 8 numbers of float32",
        push(opening, job.part(21, codec=segments.CODEC_FP64, length=4)): "segment 21: float64 numbers for 'w'",
        push(job.opening(dataclasses.replace(good, sequence=3), 1), job.part(25)): "was received where 1 was expected",
        push(
            job.opening(dataclasses.replace(good, vector="x"), 1), job.part(20)
        ): "segment 20: the rule applies to 'w'",
        push(job.part(20)): "a push begins with its opening",
        push(elsewhere, job.part(20)): "a call for job 'mnist' is not for this shard",
        push(before, job.part(20)): "is in epoch 6, not 4",
        push(later, job.part(20)): "is in epoch 6, not 7",  # a shard that does not know of its next life yet
        pull(segments=[0]): "segment 0 is not on this shard",
        pull(vector="best.0"): "segment 20: no vector 'best.0' yet",
        pull(if_newer_than=[1, 2]): "2 versions for 1 segments",
        pull(target=job.target(0)): "is in epoch 6, not 5",
    }.items():
        code, details = status(call)
        moved = "is in epoch" in reason  # to be asked again, of whoever has the segments now
        assert code is (grpc.StatusCode.ABORTED if moved else grpc.StatusCode.FAILED_PRECONDITION)
        assert details.startswith("job 'digits', shard 1: ")
        assert reason in details
    np.testing.assert_array_equal(job.read()[168:], job.full(0.0)[168:])  # segment 20 was applied before the refusal


def test_calls_and_commands_of_another_run_are_refused(job: Job) -> None:
    """A worker, a shard or a coordinator that outlived its run, and did not hear that the job was resumed."""
    stub = job.stubs[0]
    for service in job.services:
        service.controller.run_id = 5

    def client(pusher: Pusher, run_id: int) -> Any:
        places = tuple(dataclasses.replace(one, run_id=run_id) for one in job.placement.places)
        return job.client(pusher, placement=dataclasses.replace(job.placement, places=places))

    client(A, 5).push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    reason = "job 'digits', shard 0: the caller's run of the job is over: the job was restarted or resumed since"
    for run_id in (0, 4):
        stale = client(B, run_id)
        with pytest.raises(Rejected, match=reason):
            stale.push(job.full(1.0), job.held(0), Push(B, 1, np.float32(1)))
        with pytest.raises(Rejected, match=reason):
            stale.pull(job.full(0.0), job.held())
        command = wire.Command(leader_epoch=9, id=next(job.commands), run_id=run_id)
        opening = wire.CarryOpening(job="digits", shard_epoch=5, command=command, run_id=run_id)
        calls: list[tuple[Any, Any]] = [
            (stub.Configure, wire.ConfigureRequest(command=command, stop=True)),
            (stub.Snapshot, wire.SnapshotRequest(command=command, job="digits")),
            (stub.Restore, wire.RestoreRequest(command=command, job="digits")),
            (lambda request: list(stub.Carry(iter([request]))), wire.CarryRequest(opening=opening)),
        ]
        for method, request in calls:
            assert status(lambda: method(request)) == (grpc.StatusCode.FAILED_PRECONDITION, reason)  # noqa: B023
    assert not job.services[0].controller.stopped.is_set()
    out = job.full(0.0)
    client(A, 5).pull(out, job.held())
    np.testing.assert_array_equal(out, -1.0)


def test_the_client_says_which_shard_refused(job: Job) -> None:
    places = [dataclasses.replace(one, shard_epoch=4) if one.shard else one for one in job.placement.places]
    stale = dataclasses.replace(job.placement, places=tuple(places))
    client = job.client(A, placement=stale)
    where = rf"shard 1 at {job.servers[1].address}: job 'digits', shard 1: is in epoch 6, not 4"
    with pytest.raises(Rejected, match=f"^pull: {where}$"):
        client.pull(job.full(0.0), job.held())
    with pytest.raises(Rejected, match=f"^push: {where}$"):
        client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    pushed = job.client(A).push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    assert pushed.duplicates == 20  # shard 0 had taken it
    np.testing.assert_array_equal(job.read(), job.full(-1.0))


def test_fenced_incarnation_is_refused(job: Job) -> None:
    client = job.client(A)
    client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    life = segments.Pusher(replica=1, incarnation=11)
    for number in range(2):
        job.configure(number, fenced=[life])
    with pytest.raises(Rejected, match="shard 0: segment 0: replica 1 in incarnation 11 is fenced"):
        client.push(job.full(1.0), job.held(0), Push(A, 2, np.float32(1)))
    stats = job.stubs[1].Stats(wire.StatsRequest(job="digits", ledgers=True))
    assert [(row.lowest, row.highest) for row in stats.ledgers if row.pusher == life] == [(1, 1)]
    job.configure(1, forgotten=[life])
    stats = job.stubs[1].Stats(wire.StatsRequest(job="digits", ledgers=True))
    assert life not in [row.pusher for row in stats.ledgers]


# -- commands ------------------------------------------------------------------------------------------------


def test_a_command_of_a_former_leader_is_refused(job: Job, tmp_path: Path) -> None:
    job.configure(0, job.command(leader_epoch=3))
    old = job.command(leader_epoch=2)
    for call in (
        lambda: job.configure(0, old, stop=True),
        lambda: job.stubs[0].Snapshot(wire.SnapshotRequest(command=old, job="digits", folder=str(tmp_path), set="s")),
        lambda: job.stubs[0].Restore(wire.RestoreRequest(command=old, job="digits", folder=str(tmp_path), set="s")),
    ):
        code, details = status(call)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert details == "job 'digits', shard 0: leader epoch 2 is over, 3 leads"
    assert not job.services[0].controller.stopped.is_set()
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_comes_again_is_obeyed_once(job: Job) -> None:
    command = job.command(id=77)
    job.configure(0, command)
    before = job.configure(0, job.command(id=78), fenced=[])
    again = job.configure(0, command, assignment=job.assignment(0), stop=True)  # would empty and end the shard
    assert again == before
    assert not job.read().any()
    assert not job.services[0].controller.stopped.is_set()
    job.configure(0, job.command(leader_epoch=2, id=77), stop=True)  # ids count anew under the next leader
    assert job.services[0].controller.stopped.is_set()
    assert not job.services[1].controller.stopped.is_set()


def test_calls_during_an_assignment_reach_no_earlier_segments(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that joined two coordinators, as its Join was repeated, has segments of the first one's placement."""
    controller, real = job.services[0].controller, Migration.end

    def outcome(epoch: int) -> list[int] | str:
        try:
            return list(controller.shard_for(wire.Target(job="digits", shard_epoch=epoch)).segments)
        except Moved as error:
            return str(error)

    during: list[list[int] | str] = []

    def end(migration: Migration) -> None:
        during.extend(outcome(epoch) for epoch in (5, 9))
        real(migration)

    monkeypatch.setattr(Migration, "end", end)
    job.configure(0, job.command(leader_epoch=2), shard_epoch=9, assignment=job.assignment(1))
    assert during == ["is in epoch 9, not 5", "no segments are assigned to it yet"]
    assert outcome(5) == "is in epoch 9, not 5"
    assert outcome(9) == list(range(20, 40))


def test_a_refused_assignment_leaves_epoch_and_segments(job: Job) -> None:
    assignment = job.assignment(1)
    assignment.rule.name = "unknown"
    code, _ = status(lambda: job.configure(0, shard_epoch=9, assignment=assignment))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert job.configure(0).shard_epoch == 5
    assert not job.read().any()


def test_a_shard_without_segments_says_so() -> None:
    service = ShardService(Metrics("ps"))
    server = Server("127.0.0.1:0", service.register)
    channel = open_channel(server.address)
    try:
        code, details = status(lambda: stubs.ParametersStub(channel).Stats(wire.StatsRequest()))
    finally:
        channel.close()
        server.close()
    assert code is grpc.StatusCode.ABORTED
    assert details == "a shard without a job: no segments are assigned to it yet"


def test_not_ready_before_every_segment_has_values(job: Job) -> None:
    job.configure(1, shard_epoch=9, assignment=job.assignment(1))
    code, details = status(lambda: job.configure(1, ready=True))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == "job 'digits', shard 1: segment 20 has no initial values (20 of 20 miss them)"


def test_stats_count_segments(job: Job) -> None:
    client = job.client(A)
    client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1), lease=3, position=32))
    client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1), lease=3, position=32))
    client.pull(job.full(0.0), job.held())
    stats = job.stubs[1].Stats(wire.StatsRequest(job="digits", ledgers=True))
    assert (stats.shard_epoch, stats.segments, stats.parameters) == (6, 20, 20 * 8 - 3)
    assert (stats.pushes, stats.duplicates, stats.pulls) == (40, 20, 20)  # 20 of the pushes are initial values
    assert list(stats.versions) == [1] * 20
    rows = {row.pusher.replica: (row.vector, row.lowest, row.highest, row.lease, row.position) for row in stats.ledgers}
    assert rows == {0: ("w", 1, 1, 0, 0), 1: ("w", 1, 1, 3, 32)}


def test_stats_name_lease_and_position_of_the_lowest_push(job: Job) -> None:
    job.client(A).push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1), lease=3, position=32))
    opening, part = job.opening(Push(A, 2, np.float32(1), lease=6, position=16), 1), job.part(20)
    opening.opening.segments = 1
    list(job.stubs[1].Push(iter([opening, part])))
    stats = job.stubs[1].Stats(wire.StatsRequest(job="digits", ledgers=True))
    (row,) = (row for row in stats.ledgers if row.pusher.replica == A.replica)
    assert (row.lowest, row.highest, row.lease, row.position) == (1, 2, 3, 32)


def test_a_full_disk_is_one_line_that_names_the_file(job: Job, tmp_path: Path) -> None:
    request = wire.SnapshotRequest(command=job.command(), job="digits", folder=str(tmp_path), set="s")
    with files_end_at(500):
        code, reason = status(lambda: job.stubs[1].Snapshot(request))
    assert code is grpc.StatusCode.INTERNAL
    assert reason == f"job 'digits', shard 1: {tmp_path}/shard-1.safetensors: cannot be written: File too large"
    assert list(tmp_path.iterdir()) == []


def test_snapshot_paths_stay_below_the_run_folder(job: Job, tmp_path: Path) -> None:
    """No command makes a shard touch another place of its user's, by whatever way it is named."""
    root, elsewhere = tmp_path / "run" / "snapshots", tmp_path / "elsewhere"
    root.mkdir(parents=True)
    elsewhere.mkdir()
    (root / "link").symlink_to(elsewhere)
    ours = job.assignment(0)
    ours.snapshots = str(root)
    job.configure(0, assignment=ours)

    def refused(folder: str, reason: str) -> None:
        for method, request in (("Snapshot", wire.SnapshotRequest), ("Restore", wire.RestoreRequest)):
            command = request(command=job.command(), job="digits", folder=folder, set="s")
            code, details = status(functools.partial(getattr(job.stubs[0], method), command))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert (
                details == f"job 'digits', shard 0: {folder} is not below {reason}, where this job's snapshot sets are"
            )

    for folder in (elsewhere, root / ".." / "1", root / "link" / "1", root, f"{root}2/1", "relative"):
        refused(str(folder), str(root))
    job.configure(0, assignment=job.assignment(0))
    request = wire.SnapshotRequest(command=job.command(), job="digits", folder=str(root / "1" / ".." / "2"), set="s")
    assert "initial values" in status(lambda: job.stubs[0].Snapshot(request))[1]  # that folder would have done
    job.configure(0, assignment=wire.Assignment(rule=job.rule))
    refused(str(root / "1"), "any folder")
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in root.iterdir()] == ["link"]


def test_a_snapshot_brings_both_shards_back(job: Job, tmp_path: Path) -> None:
    folder = str(tmp_path)
    client, values = job.client(A), job.full(1.0)
    for number in range(2):
        client.push(values, job.held(number), Push(A, number + 1, np.float32(1)))
        if number == 0:
            for stub in job.stubs:
                reply = stub.Snapshot(wire.SnapshotRequest(command=job.command(), job="digits", folder=folder, set="s"))
                assert (tmp_path / reply.manifest).exists()
                assert reply.bytes > 20 * 8 * 4 - 13
    for number, stub in enumerate(job.stubs):
        job.configure(number, assignment=job.assignment(number))
        back = stub.Restore(wire.RestoreRequest(command=job.command(), job="digits", folder=folder, set="s"))
        assert back.segments == 20
    np.testing.assert_array_equal(job.read(), -values)
    client.push(values, job.held(1), Push(A, 2, np.float32(1)))
    np.testing.assert_array_equal(job.read(), -2 * values)
    code, details = status(
        lambda: job.stubs[0].Restore(wire.RestoreRequest(command=job.command(), job="mnist", folder=folder, set="s"))
    )
    assert code is grpc.StatusCode.DATA_LOSS
    assert "shard-0.json: belongs to job digits" in details
    np.testing.assert_array_equal(job.read(), -2 * values)


# -- the dial ------------------------------------------------------------------------------------------------


def members(*replicas: int, epoch: int = 1) -> wire.Membership:
    return wire.Membership(member_epoch=epoch, rounds=[wire.MembersFrom(clock=0, replicas=replicas)])


def test_pull_at_staleness_1_waits_for_the_slowest(
    start: Callable[..., Job],
) -> None:
    job = start(staleness=1, deadline_s=0.05)
    for number in range(2):
        assert job.configure(number, membership=members(1, 2)).clock == 0
    client, out, versions = job.client(A), job.full(np.nan), job.held()
    for clock in range(2):
        client.pull(out, versions, clock=clock)
        client.push(job.full(1.0), versions, Push(A, clock + 1, np.float32(1), clock=clock))
    np.testing.assert_array_equal(job.read(), job.full(-2.0))
    missing = r"clock 2 still waits for replicas \[2\], which have not pushed clock 0"
    with pytest.raises(Rejected, match=missing):
        client.pull(out, versions, clock=2)
    for number in range(2):
        reply = job.configure(number, membership=members(1, 2, 3, epoch=2))
        assert (reply.clock, reply.segments) == (2, 20)


def test_waiting_puller_sends_its_clock_to_recovered_shards(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waits at shard 0 for B; B waits at shard 1, which has lost round 0 and must hear that A has passed it."""
    monkeypatch.setattr("ps_server.rpc.servicer.LOOK_AGAIN_S", 0.05)
    job = start(staleness=0)
    held, back = (service.controller.require_shard() for service in job.services)
    for number in range(2):
        job.configure(number, membership=members(1, 2))
    for segment in back.segments.values():
        back.load(StoredSegment(segment.span, 0, 0, 0, 0, {}, {"w": np.zeros(segment.span.length, np.float32)}), 6)
    back.make_ready()
    places = tuple(dataclasses.replace(place, shard_epoch=place.shard_epoch - 1) for place in job.placement.places)
    known = dataclasses.replace(job.placement, places=(job.placement.places[0], places[1]))
    client = job.client(A, placement=known, refresh=lambda: job.placement)
    thread = threading.Thread(target=lambda: client.pull(job.full(0.0), job.held(), clock=1))
    thread.start()
    push_round(back, B)
    back.wait_for_clock(back.segments, 1, 10.0)
    assert thread.is_alive()
    push_round(held, A)
    push_round(held, B)
    thread.join(60)
    assert not thread.is_alive()


def push_round(shard: Shard, pusher: Pusher, clock: int = 0) -> None:
    for index, segment in shard.segments.items():
        push = Push(pusher, clock + 1, np.float32(1), clock=clock)
        shard.push(push, index, np.ones(segment.span.length, np.float32))


@pytest.mark.parametrize("rule", ["sgd", "elastic"])
def test_waiting_pusher_sends_its_clock_to_restored_shards_that_it_had_finished_with(
    tmp_path: Path, start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """A is done at shard 0 and waits at shard 1 for B, which after a restore waits at shard 0 for A."""
    monkeypatch.setattr("ps_server.rpc.servicer.LOOK_AGAIN_S", 0.05)
    job = start(staleness=0, rule=rule)
    job.snapshot(tmp_path)
    for number in range(2):
        job.configure(number, membership=members(1, 2))
    finished = job.services[0].controller.require_shard()
    push_round(finished, A, 0)
    for clock in range(2):
        push_round(finished, B, clock)
    client, push = job.client(A, refresh=lambda: job.placement), Push(A, 2, np.float32(0.5), clock=1)
    values, versions = job.full(1.0), job.held(0)
    call = functools.partial(client.push, values, versions, push)
    if rule == "elastic":
        call = functools.partial(client.exchange, values, job.full(0.0), versions, push)
    thread = threading.Thread(target=call)
    thread.start()
    finished.wait_for_clock(finished.segments, 2, 10.0)
    for number in range(2):
        job.restart(number, tmp_path, staleness=0)
        job.configure(number, membership=members(1, 2))
        job.configure(number, ready=True)
    again, awaited = (service.controller.require_shard() for service in job.services)
    for clock in range(2):
        push_round(again, B, clock)
    again.wait_for_clock(again.segments, 2, 10.0)
    for clock in range(2):
        push_round(awaited, B, clock)
    thread.join(60)
    assert not thread.is_alive()


def test_an_assignment_may_ask_for_rates_over_the_staleness(start: Callable[..., Job]) -> None:
    job = start()
    for number in range(2):
        assignment = job.assignment(number)
        assignment.staleness_aware = True
        job.configure(number, assignment=assignment)
    job.client(INITIALISER).push(job.full(0.0), job.held(), Push(INITIALISER, 1, assign=True))
    for number in range(2):
        job.configure(number, ready=True)
    for sequence in range(1, 5):
        job.client(A).push(job.full(0.0), job.held(sequence - 1), Push(A, sequence, np.float32(1)))
    job.client(B).push(job.full(8.0), job.held(0), Push(B, 1, np.float32(1)))
    np.testing.assert_array_equal(job.read(), job.full(-2.0))


def test_incomplete_round_names_the_missing_replicas(start: Callable[..., Job]) -> None:
    job = start(staleness=0, deadline_s=0.05)
    job.configure(1, membership=wire.Membership(member_epoch=1, rounds=[wire.MembersFrom(clock=0, replicas=[1, 2, 4])]))
    push = job.opening(Push(A, 1, np.float32(1)), 1)
    code, details = status(lambda: list(job.stubs[1].Push(iter([push, job.part(20)]))))
    assert code is grpc.StatusCode.INTERNAL
    assert details == "job 'digits', shard 1: segment 20: round 0 still waits for replicas [2, 4]"


def test_unknown_vector_names_add_no_metric_labels(job: Job) -> None:
    assert job.pulled(0, vector="made up") == []
    push = Push(A, 1, vector="made up", assign=True)
    assert [reply.acknowledgement.acknowledged for reply in job.stubs[0].Push(iter([job.opening(push)]))] == [0]
    assert "made up" not in "".join(metrics.text() for metrics in job.metrics)


def test_a_set_is_of_one_leader_and_incarnation(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its leader is checked while no other command is executed; none waits for its files."""
    controller, held = job.services[0].controller, list[bool]()
    check, save = controller._check_leader, snapshot.save
    lock: Any = controller._lock

    def checks(command: wire.Command) -> None:
        held.append(lock.locked())
        check(command)

    def saves(*arguments: Any) -> Any:
        held.append(lock.locked())
        return save(*arguments)

    monkeypatch.setattr(controller, "_check_leader", checks)
    monkeypatch.setattr(snapshot, "save", saves)
    request = wire.SnapshotRequest(command=job.command(), job="digits", folder=str(tmp_path), set="s")
    assert (tmp_path / controller.snapshot(request).manifest).exists()
    assert held == [True, False]
