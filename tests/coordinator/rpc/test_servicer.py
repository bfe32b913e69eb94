"""Messages in, events to the machine, messages out: the service called as gRPC calls it, without gRPC."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from coordinator.cluster.replica_scaling import LAUNCHER_TIMEOUT_S, ReplicaScaling
from coordinator.core.states import DatasetSizes, State
from coordinator.job.machine import JobMachine
from coordinator.monitoring.throughput import MemberThroughput
from coordinator.rpc.servicer import LONGEST_TEXT, CoordinatorService
from coordinator.runtime.held_requests import HeldRequests
from coordinator.scheduling.sync_policy import LOCKSTEP_RETRY_S
from dbelief.process.clock import ManualClock
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.wire.convert import layout_to_wire
from tests.coordinator.replica import LAYOUT, Replica
from tests.ps_server.servers import wait_until

if TYPE_CHECKING:
    from tests.coordinator.world import World


class Aborted(Exception):
    pass


class Context:
    """What gRPC gives to a handler."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)


class Steps:
    """A runner that only steps its machine."""

    epoch = 7
    certain = True
    folder = Path("runs/test")
    where = "runs/test"

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.RLock()
        self.job_yaml = world.machine.job.to_yaml()
        self.speed = self.leadership = self
        self.kinds: list[str] = []
        self.clock = ManualClock()
        self.throughput = MemberThroughput(self.clock, Path("nowhere/events.jsonl"), iterates=False)
        self.scaling = ReplicaScaling(world.machine.job)
        self.held = HeldRequests()
        self.exporter = SimpleNamespace(eta_s=12.5, stragglers=[1])

    def refused(self, kind: str) -> None:
        self.kinds.append(kind)

    @contextmanager
    def step(self) -> Iterator[tuple[JobMachine, float]]:
        with self._lock:
            yield self._world.machine, self._world.now_s
            self.held.update(self._world.machine.offer)

    def per_second(self) -> float:
        return 123.0

    def mean(self) -> float:
        return 45.0

    def elapsed_s(self) -> float:
        return 4.5


class Caller:
    """Calls a method of the service by name; `world` is what stands behind it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.steps = Steps(world)
        self.refused = self.steps.kinds
        self._service = CoordinatorService(self.steps)  # type: ignore[arg-type]

    def __call__(self, method: str, request: Any) -> Any:
        return getattr(self._service, method)(request, Context())

    def refusal(self, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(Aborted) as caught:
            self(method, request)
        code, details = caught.value.args
        return code, details


@pytest.fixture
def call(a_world: Callable[..., World]) -> Caller:
    return Caller(a_world(evaluate={"every": 30, "keep": "best"}))


@pytest.fixture
def training(call: Caller) -> Caller:
    call.world.started()
    return call


def join(role: wire.Role.ValueType = wire.ROLE_SHARD, job: str = "test", **fields: Any) -> wire.JoinRequest:
    return wire.JoinRequest(role=role, job=job, **fields)


def beat(replica: Replica, **fields: Any) -> wire.BeatRequest:
    return wire.BeatRequest(role=wire.ROLE_REPLICA, id=replica.number, incarnation=replica.incarnation, **fields)


def report(call: Caller, number: int = 0, **fields: Any) -> wire.ReportRequest:
    replica = call.world.replicas[number]
    return wire.ReportRequest(replica=replica.number, incarnation=replica.incarnation, **fields)


def lease(call: Caller, number: int = 0, **fields: Any) -> wire.LeaseReply:
    replica = call.world.replicas[number]
    fields = {"last_lease": replica.last_lease, **fields}
    request = wire.LeaseRequest(replica=replica.number, incarnation=replica.incarnation, **fields)
    reply: wire.LeaseReply = call("Lease", request)
    return reply


def test_join_returns_number_incarnation_and_settings(call: Caller) -> None:
    reply = call("Join", join(address="10.0.0.1:5", token=5, preferred_id=1))
    assert reply == wire.JoinReply(id=1, incarnation=1, leader_epoch=7, heartbeat_timeout_s=5.0)
    assert call("Join", join(token=6)).id == 0


def test_calls_from_an_earlier_run_are_refused(training: Caller) -> None:
    """A resumed job may give a new worker the number and the life that one has which outlived its coordinator."""
    machine, replica = training.world.machine, training.world.replicas[0]
    machine.initialization.run_id = 5
    heard_s = training.world.now_s
    training.world.now_s += 1.0
    for named in (0, 4):
        who: dict[str, Any] = {"replica": replica.number, "incarnation": replica.incarnation, "run_id": named}
        for method, request in (
            ("Beat", beat(replica, run_id=named)),
            ("Lease", wire.LeaseRequest(**who)),
            ("Report", wire.ReportRequest(**who, trouble="it is not this run's")),
        ):
            assert training.refusal(method, request) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "the caller's run of the job is over: the job was restarted or resumed since",
            )
    assert machine.state is State.READY
    assert machine.leases.outstanding == {}
    member = machine.members.find("replica", replica.number, replica.incarnation)
    assert member is not None
    assert member.last_beat_s <= heard_s
    assert training("Beat", beat(replica, run_id=5)).member
    assert training("Join", join(wire.ROLE_CLIENT, layout=layout_to_wire(LAYOUT), token=9)).run_id == 5


def test_join_refuses_another_job_and_an_unknown_role(call: Caller) -> None:
    assert call.refusal("Join", join(job="mnist")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "this coordinator runs job 'test', not 'mnist'",
    )
    for method, request in (("Join", join(wire.ROLE_UNSPECIFIED)), ("Beat", wire.BeatRequest())):
        assert call.refusal(method, request)[1] == "a member is a shard, a replica or a client"
    assert call.refused == ["Rejected"] * 3


@pytest.mark.parametrize("field", ["name", "address", "source_digest"])
def test_member_texts_are_limited_in_length(call: Caller, field: str) -> None:
    fields: dict[str, Any] = {field: LONGEST_TEXT * "x" + "x"}
    code, reason = call.refusal("Join", join(token=5, **fields))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert reason.endswith(f" has at most {LONGEST_TEXT} characters, not {LONGEST_TEXT + 1}")
    assert not call.world.machine.members.all()


@pytest.mark.parametrize("field", ["name", "address", "source_digest"])
def test_member_texts_have_no_control_characters(call: Caller, field: str) -> None:
    fields: dict[str, Any] = {field: "x\x1b[2J\n"}
    code, reason = call.refusal("Join", join(token=5, **fields))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert reason.endswith(r" has no control characters: x\x1b[2J\x0a")
    assert not call.world.machine.members.all()


@pytest.mark.parametrize("address", ["nonsense", "a:b", "host:99999", "host:1 "])
def test_invalid_address_is_refused(call: Caller, address: str) -> None:
    code, reason = call.refusal("Join", join(token=5, address=address))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "is no address" in reason


def test_join_takes_a_layout_from_the_wire(call: Caller) -> None:
    layout = call.world.replica().world.machine.layout
    assert layout is not None
    reply = call("Join", join(wire.ROLE_CLIENT, token=9, layout=layout_to_wire(layout)))
    assert reply.id == 1
    assert call.refusal("Join", join(wire.ROLE_REPLICA, token=10))[1] == "a replica joins with its model's layout"


def test_heartbeat_returns_state_and_initialiser(call: Caller) -> None:
    world = call.world.all_shards()
    replica = world.replica()
    world.settle()
    request = wire.BeatRequest(role=wire.ROLE_REPLICA, id=replica.number, incarnation=replica.incarnation)
    reply = call("Beat", request)
    assert (reply.state, reply.member, reply.initialise) == (wire.STATE_INITIALISING, True, True)
    assert [[run.count for run in place.runs] for place in reply.placement.shards] == [[2], [2]]
    request.placement_epoch = reply.placement.placement_epoch
    assert not call("Beat", request).HasField("placement")
    request.incarnation += 100
    assert not call("Beat", request).member


def test_a_leaving_beat_is_goodbye(training: Caller) -> None:
    training("Beat", beat(training.world.replicas[0], leaving=True, reason="asked to end"))
    assert [m.number for m in training.world.machine.members.alive("replica")] == [1]


def test_every_kind_of_work_goes_over_the_wire(training: Caller) -> None:
    first = training.world.replicas[0]
    reply = lease(training)
    assert reply.training == wire.TrainingLease(lease=1, epoch=0, start=0, stop=30, samples_before=0)
    first.work()
    first.train()
    assert lease(training).evaluation == wire.EvaluationLease(
        lease=2, set="validation", vector="w", samples=30, placement_epoch=1
    )
    training.world.machine.close("enough")
    assert lease(training, number=1).wait_s == 0.05
    training.world.machine.fail("out of memory")
    assert lease(training, number=1).stop == "out of memory"


def test_client_report_returns_state_and_due_evaluation(training: Caller) -> None:
    world = training.world
    client = world.replica(kind="client")
    progress = wire.Progress(sequence=1, pushes=1, samples=100)
    request = wire.ReportRequest(replica=client.number, incarnation=client.incarnation, progress=progress)
    assert training("Report", request) == wire.ReportReply(state=wire.STATE_READY, report_every_s=0.03, samples=100)
    world.machine.training.evaluations.request("validation", "w")
    for replica in world.replicas[:2]:
        replica.leave()
    assert training("Report", request) == wire.ReportReply(
        state=wire.STATE_READY, evaluate=True, report_every_s=0.01, samples=100
    )


def test_a_coordinator_that_may_be_replaced_ends_no_member(training: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a suspension it does not know who has joined since, and its own failure is not the job's."""
    first, second = training.world.replicas
    gone = beat(second)
    second.die()
    ends = [("Beat", gone), ("Lease", wire.LeaseRequest(replica=gone.id, incarnation=gone.incarnation))]
    monkeypatch.setattr(training.steps, "certain", False)
    for method, request in ends:
        code, reason = training.refusal(method, request)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "another coordinator may lead" in reason
    assert training("Beat", beat(first)).uncertain
    training.world.machine.fail("AttachFollower: leader epoch 2 is over, 3 leads")
    for method, request in [*ends, ("Beat", beat(first)), ("Report", report(training))]:
        assert training.refusal(method, request)[0] is grpc.StatusCode.UNAVAILABLE
    monkeypatch.setattr(training.steps, "certain", True)
    assert training("Beat", beat(first)).state == wire.STATE_FAILED


def test_reports_are_taken_in(training: Caller) -> None:
    lease(training)
    progress = wire.Progress(
        lease=1, position=30, sequence=4, pushes=3, samples=30, steps=3, loss_sum=60.0, staleness_sum=6.0
    )
    assert training("Report", report(training, progress=progress)) == wire.ReportReply(report_every_s=0.02, samples=30)
    assert training.world.machine.progress.loss == 2.0
    assert training.world.machine.leases.reached == {training.world.replicas[0].incarnation: 4}
    initialization = training.world.machine.initialization
    assert initialization.placement is not None
    evaluation = lease(training, number=1).evaluation
    assert evaluation.placement_epoch == 1
    initialization.replace(initialization.placement.places[0])
    training.world.machine.commit_due = False
    outcome = wire.Evaluation(lease=evaluation.lease, loss=0.5, accuracy=0.0)
    expected = wire.ReportReply(store_as="best.0", placement_epoch=2, report_every_s=0.02, samples=30)
    assert training("Report", report(training, 1, evaluation=outcome)) == expected
    assert training.world.machine.commit_due, "another coordinator must know this placement"
    training("Report", report(training, 1, stored_lease=evaluation.lease))
    best = training.world.machine.progress.best
    assert best is not None
    assert (best.vector, best.accuracy) == ("best.0", 0.0)


def test_a_report_with_a_request_for_work_is_recorded_before_it_is_answered(training: Caller) -> None:
    world = training.world
    first = world.replicas[0]
    lease(training)
    reported = wire.ReportRequest(
        progress=wire.Progress(lease=1, position=30, sequence=4, pushes=3, samples=30, steps=3, loss_sum=60.0),
        wire=wire.WireFigures(sent=7),
        cache_reads={"user": 8},
        cache_hits={"user": 6},
    )
    asked = wire.LeaseRequest(replica=first.number, incarnation=first.incarnation, last_lease=1, report=reported)
    reply = training("Lease", asked)
    assert reply.evaluation.samples == 30, "the evaluation that these samples make due"
    assert reply.report_every_s == 0.02
    progress = world.machine.progress
    assert (progress.samples, progress.loss) == (30, 2.0)
    training("Lease", asked)
    assert progress.samples == 30, "repeated, as its reply was lost"
    assert progress.cached == {"user": (8, 6)}
    gone = wire.LeaseRequest(replica=first.number, incarnation=999, report=reported)
    assert "was removed" in training("Lease", gone).stop


def test_a_request_without_a_report_acknowledges_nothing(training: Caller) -> None:
    """It names the lease that it has received, and holds both until it reports."""
    leases = training.world.machine.leases
    assert lease(training).training.lease == lease(training).training.lease == 1, "its reply was lost"
    assert lease(training, last_lease=1).training.lease == 2
    assert lease(training, last_lease=1).training.lease == 2
    assert (leases.done, list(leases.outstanding)) == (0, [1, 2])
    progress = wire.Progress(lease=2, position=10, sequence=5, pushes=4, samples=40, steps=4, loss_sum=40.0)
    training("Report", report(training, progress=progress))
    assert (leases.done, list(leases.outstanding)) == (40, [2])


@pytest.mark.parametrize("with_request", [False, True])
def test_skipped_samples_in_a_report_are_recorded_before_its_progress(training: Caller, with_request: bool) -> None:
    world = training.world
    leases, progress = world.machine.leases, world.machine.progress
    lease(training)
    fields: dict[str, Any] = {
        "skipped": [wire.SkippedSamples(lease=1, start=10, stop=15), wire.SkippedSamples(lease=1, start=25, stop=30)],
        "progress": wire.Progress(lease=1, position=20, sequence=3, pushes=2, samples=15, steps=2, loss_sum=15.0),
    }
    for _ in range(2):
        if with_request:
            assert lease(training, last_lease=1, report=wire.ReportRequest(**fields)).HasField("training")
        else:
            training("Report", report(training, **fields))
        assert (progress.samples, leases.done, leases.outstanding[1].position) == (15, 15, 20)
        assert "[[10,15],[25,30]]" in world.stored["lease:1"], "another coordinator must know of them"
    if not with_request:
        assert list(leases.returned) == [(0, 10, 15), (0, 25, 30)]
    last = wire.Progress(lease=1, position=25, sequence=4, pushes=3, samples=20, steps=3, loss_sum=20.0)
    training("Report", report(training, progress=last))
    assert leases.done == progress.samples == 20
    assert 1 not in leases.outstanding


def test_work_that_is_wanted_goes_over_the_wire(training: Caller) -> None:
    training.world.machine.training.evaluations.request("validation", "w")
    assert lease(training, wants=wire.WANTS_TRAINING).training.lease == 1
    assert lease(training, wants=wire.WANTS_EVALUATION).evaluation.lease == 2
    assert lease(training, 1, wants=wire.WANTS_EVALUATION).WhichOneof("work") == "wait_s"
    assert lease(training, 1).training.lease == 3, "any work"


def test_in_lockstep_the_last_block_is_still_to_come(a_world: Callable[..., World]) -> None:
    """Its leases empty the pool, and are sent when the shards have its members: nobody may end meanwhile."""
    call = Caller(a_world(DatasetSizes(40, 0, 0), strategy__staleness=0, limits={"epochs": 1}))
    call.world.started()
    for number in (0, 1):
        supply = lease(call, number, wants=wire.WANTS_TRAINING).supply
        assert supply == wire.SUPPLY_LATER
    assert call.world.machine.leases.room() == 0
    assert lease(call, 0, wants=wire.WANTS_EVALUATION).supply == wire.SUPPLY_LATER
    call.world.settle()
    for number in (0, 1):
        held = lease(call, number, wants=wire.WANTS_TRAINING).training.lease
        assert lease(call, number, last_lease=held, wants=wire.WANTS_TRAINING).supply == wire.SUPPLY_DRAINED


def test_one_that_waits_is_informed_of_the_supply(training: Caller) -> None:
    """Samples left; all leased; left again, with a replica that failed; and no more leases."""
    world = training.world
    assert lease(training, wants=wire.WANTS_EVALUATION).supply == wire.SUPPLY_LATER
    held, last = dict[int, int](), 0
    while (reply := lease(training, last_lease=last, wants=wire.WANTS_TRAINING)).HasField("training"):
        assert reply.supply == wire.SUPPLY_UNSPECIFIED, "there is work"
        last, held[last] = reply.training.lease, reply.training.stop - reply.training.start
    assert sum(held.values()) == 200
    for wants in (wire.WANTS_TRAINING, wire.WANTS_EVALUATION, wire.WANTS_ANY):
        assert lease(training, 1, wants=wants).supply == wire.SUPPLY_DRAINED
    world.replicas[0].die()
    world.settle()
    assert lease(training, 1, wants=wire.WANTS_EVALUATION).supply == wire.SUPPLY_LATER
    assert lease(training, 1, wants=wire.WANTS_TRAINING).HasField("training")
    world.machine.stop("enough", world.now_s)
    reply = lease(training, 1, last_lease=999, wants=wire.WANTS_TRAINING)
    assert (reply.WhichOneof("work"), reply.supply) == ("wait_s", wire.SUPPLY_OVER)
    world.machine.fail("out of memory")
    assert lease(training, 1, wants=wire.WANTS_TRAINING).stop == "out of memory"


def test_reply_with_work_or_without_has_the_jobs_samples(training: Caller) -> None:
    progress = wire.Progress(lease=1, position=20, sequence=3, pushes=2, samples=20, steps=2, loss_sum=15.0)
    lease(training)
    training("Report", report(training, progress=progress))
    assert lease(training, 1, wants=wire.WANTS_TRAINING).samples == 20
    assert lease(training, 1, wants=wire.WANTS_EVALUATION).samples == 20


@pytest.fixture
def lockstep(a_world: Callable[..., World]) -> Caller:
    world = a_world(strategy__staleness=0)
    world.started()
    return Caller(world)


def held_request(call: Caller, number: int, hold_s: float, **fields: Any) -> Future[wire.LeaseReply]:
    """A request for work in a thread of its own, once it is held."""
    replica, reply = call.world.replicas[number], Future[wire.LeaseReply]()
    request = wire.LeaseRequest(
        replica=replica.number,
        incarnation=replica.incarnation,
        last_lease=replica.last_lease,
        hold_s=hold_s,
        **fields,
    )
    threading.Thread(target=lambda: reply.set_result(call("Lease", request)), daemon=True).start()
    wait_until(lambda: reply.done() or replica.incarnation in call.steps.held._last)
    return reply


def inform_shards(call: Caller) -> None:
    with call.steps.step() as (machine, _):
        machine.training.policy.shards_acknowledged(machine.training.policy.member_epoch, 0)


def test_a_request_in_lockstep_is_held_until_its_block_can_begin(lockstep: Caller) -> None:
    first = held_request(lockstep, 0, hold_s=60.0)
    assert not first.done()
    second = held_request(lockstep, 1, hold_s=60.0)
    assert not first.done(), "the shards have not got the members yet"
    assert not second.done()
    inform_shards(lockstep)
    leases = [one.result(timeout=30) for one in (first, second)]
    assert [lease.training.lease for lease in leases] == [1, 2]
    assert len({lease.training.member_epoch for lease in leases}) == 1
    assert all(lease.report_every_s > 0 for lease in leases)
    assert not lockstep.steps.held._last, "no request is held any more"


def test_a_block_that_was_formed_before_the_job_closes_is_still_to_come(lockstep: Caller) -> None:
    """Else its members ask no more, and the job waits for their leases without end."""
    for number in (0, 1):
        assert lease(lockstep, number, wants=wire.WANTS_TRAINING).supply == wire.SUPPLY_LATER
    with lockstep.steps.step() as (machine, now_s):
        machine.stop("enough", now_s)
    for wants in (wire.WANTS_TRAINING, wire.WANTS_EVALUATION):
        assert lease(lockstep, wants=wants).supply == wire.SUPPLY_LATER
    inform_shards(lockstep)
    for number in (0, 1):
        held = lease(lockstep, number, wants=wire.WANTS_TRAINING).training.lease
        assert held == number + 1
        assert lease(lockstep, number, last_lease=held, wants=wire.WANTS_TRAINING).supply == wire.SUPPLY_OVER


def test_a_held_request_is_no_contact_with_its_replica(lockstep: Caller) -> None:
    """The process behind it may have ended meanwhile."""
    world, member = lockstep.world, lockstep.world.machine.members.alive("replica")[0]
    held_request(lockstep, 0, hold_s=60.0)
    heard_s = member.last_beat_s
    world.now_s += 3.0
    second = held_request(lockstep, 1, hold_s=60.0)
    inform_shards(lockstep)
    assert second.result(timeout=30).HasField("training")
    assert member.last_beat_s == heard_s


def test_a_held_request_ends_in_time_and_with_the_job(lockstep: Caller) -> None:
    reply = held_request(lockstep, 0, hold_s=0.01).result(timeout=30)
    assert (reply.WhichOneof("work"), reply.wait_s) == ("wait_s", 0.0), "it asks again at once"
    held = held_request(lockstep, 0, hold_s=60.0)
    with lockstep.steps.step() as (machine, _):
        machine.fail("out of memory")
    assert held.result(timeout=30).stop == "out of memory"


@pytest.mark.parametrize("hold_s", [0.0, -1.0, math.nan])
def test_a_request_that_permits_no_hold_is_answered_at_once(lockstep: Caller, hold_s: float) -> None:
    assert held_request(lockstep, 0, hold_s=hold_s).result(timeout=30).wait_s == LOCKSTEP_RETRY_S


def test_a_request_whose_connection_broke_takes_no_work_from_the_one_that_followed(lockstep: Caller) -> None:
    first = held_request(lockstep, 0, hold_s=60.0)
    again = held_request(lockstep, 0, hold_s=60.0)
    held_request(lockstep, 1, hold_s=60.0)
    inform_shards(lockstep)
    assert again.result(timeout=30).HasField("training")
    assert first.result(timeout=30).HasField("wait_s")


def test_a_report_is_a_heartbeat_of_a_member_and_of_no_other(training: Caller) -> None:
    world = training.world
    first, second = world.replicas
    for replica in first, second:
        replica.mute = True
    world.tick(4.0)
    assert not training("Report", report(training)).beat_now
    world.tick(2.0)
    assert [member.number for member in world.machine.members.alive("replica")] == [first.number]
    assert training("Report", report(training, 1)).beat_now, "its heartbeat says that it was removed"
    world.machine.fail("out of memory")
    assert training("Report", report(training)).beat_now


def test_many_members_report_and_send_heartbeats_less_often(training: Caller) -> None:
    world = training.world
    beat_s = world.job.deadlines.beat_s
    assert training("Beat", beat(world.replicas[0])).beat_every_s == beat_s / 4
    for _ in range(598):
        world.replica()
    assert training("Report", report(training)).report_every_s == 6.0
    assert training("Beat", beat(world.replicas[0])).beat_every_s == pytest.approx(beat_s / 3)


def test_a_model_without_accuracy_has_none(training: Caller) -> None:
    lease(training)
    training("Report", report(training, progress=wire.Progress(lease=1, position=30, pushes=3, samples=30)))
    evaluation = lease(training, number=1).evaluation
    training("Report", report(training, 1, evaluation=wire.Evaluation(lease=evaluation.lease, loss=0.5)))
    assert training.world.machine.progress.last is not None
    assert training.world.machine.progress.last.accuracy is None


def test_initial_values_are_reported(call: Caller) -> None:
    world = call.world.all_shards()
    replica = world.replica()
    world.settle()
    assert replica.is_initialiser()
    replica.initialise(segments=range(4))
    call("Report", report(call, initialised_in=1))
    world.settle()
    assert world.state() is State.READY


@pytest.mark.parametrize("role", ["operator", "worker"])
@pytest.mark.parametrize("own", [True, False])
def test_reports_are_allowed_by_role(training: Caller, monkeypatch: pytest.MonkeyPatch, role: str, own: bool) -> None:
    """With credentials a launcher has the operator's token; it reports for no member, and no member for the job."""
    monkeypatch.setattr("dbelief.rpc.server.auth.caller", lambda: role)
    request = report(training, 1, trouble="one's own") if own else wire.ReportRequest(trouble="all died")
    if own is (role == "worker"):
        training("Report", request)
        assert training.world.machine.reason == ("replica 1: one's own" if own else "all died")
    else:
        with pytest.raises(Aborted, match=f"the caller's token is for {role}"):
            training("Report", request)


def test_status_before_anything_is_known(call: Caller) -> None:
    status = call("Status", wire.StatusRequest())
    assert (status.job, status.state, status.waiting_for) == ("test", wire.STATE_EMPTY, "shards (0 of 2 joined)")
    unknown = ("loss", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy", "staleness_mean")
    assert all(math.isnan(getattr(status, name)) for name in unknown)
    assert (status.samples, status.total_samples, status.job_yaml) == (0, 200, "")
    assert (status.samples_per_s, status.elapsed_s, status.run_folder) == (45.0, 4.5, "runs/test")


def test_status_lists_all_members(training: Caller) -> None:
    first = training.world.replicas[0]
    first.work()
    first.train()
    training.world.tick(2.0)
    status = training("Status", wire.StatusRequest(job=True))
    assert (status.state, status.samples, status.epoch, status.loss, status.shards) == (
        wire.STATE_READY,
        30,
        0.3,
        1.0,
        2,
    )
    assert status.waiting_for == ""
    assert status.job_yaml == training.world.job.to_yaml()
    rows = [(m.role, m.id, m.state, m.samples) for m in status.members]
    assert rows == [
        (wire.ROLE_REPLICA, 0, "training", 30),
        (wire.ROLE_REPLICA, 1, "waiting", 0),
        (wire.ROLE_SHARD, 0, "serving", 0),
        (wire.ROLE_SHARD, 1, "serving", 0),
    ]


def test_status_of_a_batch_method(a_world: Callable[..., World]) -> None:
    strategy = {"name": "sandblaster", "portion": 10, "bundle": 4, "iterations": 6}
    call = Caller(a_world(strategy=strategy, limits={"epochs": 500}, evaluate={"every": None}))
    assert call("Status", wire.StatusRequest()).batch.iterations == 6
    call.world.started()
    bundle = lease(call).bundle
    computed = wire.BundleDone(pass_number=bundle.pass_number, bundle=bundle.bundle, loss_sum=40.0, samples=20)
    lease(call, number=1)
    call("Report", report(call, bundle=computed))
    batch = call("Status", wire.StatusRequest()).batch
    assert all(math.isnan(value) for value in (batch.loss, batch.gradient_norm, batch.step))
    batch.loss = batch.gradient_norm = batch.step = 0
    assert batch == wire.BatchStatus(iterations=6, pass_number=1, portions_done=2, portions=10, bundles=1)


def test_status_of_another_strategy_has_none(call: Caller) -> None:
    status = call("Status", wire.StatusRequest())
    assert not status.HasField("batch")
    assert not status.HasField("rounds")


def test_status_of_a_job_in_lockstep(a_world: Callable[..., World]) -> None:
    call = Caller(a_world(strategy__staleness=0))
    call.world.started()
    rounds = call("Status", wire.StatusRequest()).rounds
    assert all(math.isnan(getattr(rounds, name)) for name in ("pushes_per_round", "late_age", "computing"))
    for number in (0, 1, 0):
        lease(call, number)
        call.world.settle()
    progress = wire.Progress(lease=1, position=20, sequence=2, pushes=2, samples=20, steps=2, loss_sum=2.0)
    figures = wire.WireFigures(sent=40, shared_sent=60, received=20)
    call("Report", report(call, progress=progress, wire=figures, seconds={"compute": 1.0, "push": 3.0}))
    rounds = call("Status", wire.StatusRequest()).rounds
    assert (rounds.rounds, rounds.pushes_per_round, rounds.late_pushes) == (2, 1.0, 0)
    assert (rounds.sent_per_sample, rounds.received_per_sample, rounds.computing) == (5.0, 1.0, 0.25)


def test_stop_answers_with_the_state(training: Caller) -> None:
    training.world.replicas[0].work()
    assert training("Stop", wire.StopRequest()).state == wire.STATE_CLOSING
    assert training.world.machine.reason == "stopped"


def test_shard_heartbeat_figures_appear_in_status(training: Caller) -> None:
    number, incarnation = training.world.shard_members[0]
    for second in range(3):
        figures = wire.ShardFigures(
            pushes=10.0 * second, bytes_received=300 * second, bytes_sent=100 * second, segments=4, parameters=9
        )
        training("Beat", wire.BeatRequest(role=wire.ROLE_SHARD, id=number, incarnation=incarnation, shard=figures))
        training.steps.clock.advance(1.0)
    members = training("Status", wire.StatusRequest()).members
    (told,) = [member for member in members if member.role == wire.ROLE_SHARD and member.id == number]
    assert (told.segments, told.parameters) == (4, 9)
    assert (told.pushes_per_s, told.bytes_per_s) == (10.0, 400.0)


def test_what_members_have_made_and_used_appears_in_status(training: Caller) -> None:
    number, incarnation = training.world.shard_members[0]
    beat = wire.BeatRequest(role=wire.ROLE_SHARD, id=number, incarnation=incarnation)
    beat.processors.machine, beat.processors.used_s = "m", 3.0
    training("Beat", beat)
    sent = report(training, 0, seconds={"compute": 2.0}, wire=wire.WireFigures(sent=10, shared_sent=5, received=7))
    sent.processors.machine, sent.processors.cores = "m", 2.0
    training("Report", sent)
    status = training("Status", wire.StatusRequest())
    assert status.lease_samples > 0
    assert status.processors.lived_s > 0
    (shard,) = [one for one in status.members if one.role == wire.ROLE_SHARD and one.id == number]
    assert (shard.incarnation, shard.processors.used_s) == (incarnation, 3.0)
    first, second = (one for one in status.members if one.role == wire.ROLE_REPLICA)
    assert (first.bytes_sent, first.bytes_received, dict(first.seconds)) == (15, 7, {"compute": 2.0})
    assert first.processors.cores == 2.0
    assert not second.HasField("processors")


def test_staleness_is_kept_per_incarnation_and_summed(training: Caller) -> None:
    training("Report", report(training, 0, staleness=[5, 0, 2]))
    for _ in range(2):  # a repeat changes nothing
        training("Report", report(training, 0, staleness=[6, 0, 3]))
    training("Report", report(training, 1, staleness=[1, 1, 1]))
    assert list(training("Status", wire.StatusRequest()).staleness) == [7, 1, 4]


def test_curves_are_sent_on_request(training: Caller) -> None:
    training.steps.throughput.curves.add("progress", {"samples": 10, "loss": 0.5}, 0.0)
    assert not training("Status", wire.StatusRequest()).curves
    (curve,) = training("Status", wire.StatusRequest(curves=True)).curves
    assert (curve.name, curve.over, list(curve.x), list(curve.y)) == ("loss", "samples", [10.0], [0.5])


def test_replicas_are_wanted_of_a_launcher(training: Caller) -> None:
    wants = wire.ScaleRequest(replicas=7)
    assert training.refusal("Scale", wants)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert not training("Status", wire.StatusRequest(scales=True)).HasField("wanted_replicas")
    assert training("Scale", wants).before == len(training.world.replicas)
    assert training("Status", wire.StatusRequest()).wanted_replicas == 7


def test_shards_are_wanted_of_a_launcher_or_of_a_person(training: Caller) -> None:
    reply = training("Scale", wire.ScaleRequest(shards=4))
    assert reply.before == 2
    assert reply.todo.startswith("now start 2 more: with compose, `docker compose up ")
    assert "--scale ps=4`" in reply.todo
    assert "`kubectl scale statefulset ps --replicas=4`" in reply.todo
    told = training("Status", wire.StatusRequest(scales=True))
    assert (told.wanted_shards, list(told.needed_shards)) == (4, [0, 1])
    assert told.waiting_for == "shards (2 of 4 have a place)"
    assert not training("Scale", wire.ScaleRequest(shards=3)).todo, "a launcher is there"
    training.world.now_s += LAUNCHER_TIMEOUT_S + 1.0
    todo = training("Scale", wire.ScaleRequest(shards=1)).todo
    assert todo.startswith("1 will end by themselves; when they have: with compose")
    refusal = training.refusal("Scale", wire.ScaleRequest(shards=5))
    assert refusal[1] == "job test has 4 segments, and no use for 5 shards"


def test_new_placement_is_persisted_before_it_is_sent(training: Caller) -> None:
    replica, machine = training.world.replicas[0], training.world.machine
    assert machine.placement is not None
    request = wire.BeatRequest(role=wire.ROLE_REPLICA, id=replica.number, incarnation=replica.incarnation)
    request.placement_epoch = machine.placement.epoch
    training("Beat", request)
    assert not machine.commit_due
    request.placement_epoch -= 1
    assert training("Beat", request).HasField("placement")
    assert machine.commit_due


def test_eta_and_stragglers_match_the_metrics(training: Caller) -> None:
    told = training("Status", wire.StatusRequest())
    assert told.eta_s == 12.5
    assert [member.id for member in told.members if member.straggler] == [1]
    training("Report", wire.ReportRequest(trouble="over"))
    assert math.isnan(training("Status", wire.StatusRequest()).eta_s)
