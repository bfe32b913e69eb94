"""Invalid messages of a peer: refused with a status and a reason, without any effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
import pytest

from coordinator.job.persistence import serialize
from coordinator.rpc.servicer import CoordinatorService
from dbelief.core.push import Push
from dbelief.rpc.channel import open_channel
from dbelief.rpc.pb import coordination_pb2 as coordination
from dbelief.rpc.pb import coordination_pb2_grpc as coordination_stubs
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server
from dbelief.rpc.wire.convert import layout_to_wire, push_to_wire
from tests.coordinator.replica import LAYOUT
from tests.coordinator.rpc.test_servicer import Steps
from tests.coordinator.world import OTHER_LAYOUT, World, make_job
from tests.ps_server.servers import SGD, A, Job

MOVED, REFUSED, INVALID = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)
LOST, INTERNAL = grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INTERNAL
GOOD = Push(A, 1, np.float32(1))
WHERE = "job 'digits', shard 0: "


@dataclass(frozen=True)
class Sent:
    """A row: what is sent, by whom it is refused, and why.

    Attributes
    ----------
    send
        Gets the job, or the coordinator's stub, and sends; what it gives back is thrown away.
    says
        The reason, as a regular expression for all of it.
    """

    name: str
    send: Callable[[Any], Any]
    says: str
    code: grpc.StatusCode = REFUSED

    def __str__(self) -> str:
        """Name of the test."""
        return self.name


# -- to a shard ----------------------------------------------------------------------------------------------


def push(*parts: tuple[int, dict[str, Any]], opening: wire.PushRequest | None = None, **changed: Any) -> Any:
    """Push these segments under an opening with these changes."""

    def send(job: Job) -> None:
        begin = job.opening(replace(GOOD, **changed)) if opening is None else opening
        list(job.stubs[0].Push(iter([begin, *(job.part(index, **fields) for index, fields in parts)])))

    return send


def pull(**fields: Any) -> Any:
    """Ask shard 0 for something."""
    return lambda job: job.pulled(0, **{"segments": [0], **fields})


def opened(job: str = "digits", epoch: int = 5) -> wire.PushRequest:
    """An opening for this life of a shard of this job."""
    return wire.PushRequest(opening=push_to_wire(GOOD, wire.Target(job=job, shard_epoch=epoch), SGD, 1))


def raw(method: str, *messages: bytes) -> Any:
    """Send bytes as they are."""

    def send(job: Job) -> None:
        call = job.channels[0].stream_stream(f"/dbelief.v1.Parameters/{method}", bytes, bytes)
        list(call(iter(messages)))

    return send


def told(**fields: Any) -> Any:
    """A command of the coordinator."""
    return lambda job: job.configure(0, **fields)


def stored(method: str, **fields: str) -> Any:
    """A command that writes or reads a set."""

    def send(job: Job) -> None:
        request = {"Snapshot": wire.SnapshotRequest, "Restore": wire.RestoreRequest}[method]
        getattr(job.stubs[0], method)(request(command=job.command(), job="digits", set="s", **fields))

    return send


TO_A_SHARD = [
    Sent("push: too many numbers", push((0, {"length": 9, "data": bytes(36)})),
         "segment 0: 9 numbers at 0 do not fit its 8"),
    Sent("push: no numbers", push((0, {"length": 0, "data": b""})), "segment 0: 0 numbers at 0 do not fit its 8"),
    Sent("push: numbers past the end", push((0, {"offset": 4})), "segment 0: 8 numbers at 4 do not fit its 8"),
    Sent("push: fewer bytes than numbers", push((0, {"data": bytes(31)})),
         "segment 0: 31 bytes are not 8 numbers of float32"),
    Sent("push: bytes of another codec", push((0, {"codec": segments.CODEC_BF16})),
         "segment 0: 32 bytes are not 8 numbers of bf16"),
    Sent("push: a scale that is none", push((0, {"codec": segments.CODEC_FP16, "data": bytes(20)})),
         "segment 0: a scale of 0 is no power of two .*"),
    Sent("push: indices that fall", push((0, {"codec": segments.CODEC_THRESHOLD,
                                              "data": np.array([0x3F800000, 3, 2], "<u4").tobytes()})),
         "segment 0: indices that do not rise, or leave the 8 numbers there are"),
    Sent("push: a codec that is not known", push((0, {"codec": 77})),
         "segment 0: payload 77 is not one that is read here"),
    Sent("push: numbers of another type", push((0, {"codec": segments.CODEC_FP64, "length": 4})),
         "segment 0: float64 numbers for 'w', which holds float32"),
    Sent("push: a payload elsewhere", lambda job: list(job.stubs[0].Push(iter([job.opening(GOOD), wire.PushRequest(
         shared=segments.SharedSegments(segments=[0], versions=[0]))]))),
        "segment 0: lies in shared memory, and the opening does not say where"),
    Sent("push: segments elsewhere without versions", lambda job: list(job.stubs[0].Push(iter([job.opening(GOOD),
         wire.PushRequest(shared=segments.SharedSegments(segments=[0]))]))),
        "0 versions for 1 segments in shared memory"),
    Sent("push: a segment that is not known", push((39, {})),
         "segment 39 is not on this shard"),
    Sent("push: a vector that no rule applies to", push((0, {}), vector="x"),
         "segment 0: the rule applies to 'w', not to 'x'"),
    Sent("push: a gap", push((0, {}), sequence=3),
         "segment 0: push 3 of replica 1 on 'w' was received where 1 was expected"),
    Sent("push: a rate that is not a number", push((0, {}), rate=np.float32(np.nan)), "a push by the rate nan"),
    Sent("push: a rate below zero", push((0, {}), rate=np.float32(-1)), "a push by the rate -1"),
    Sent("push: no opening", lambda job: list(job.stubs[0].Push(iter([job.part(0)]))),
         "a push begins with its opening"),
    Sent("push: two openings", lambda job: list(job.stubs[0].Push(iter([opened(), opened()]))),
         "a push was opened before the one before it was complete"),
    Sent("push: another job", push((0, {}), opening=opened("mnist")), "a call for job 'mnist' is not for this shard"),
    Sent("push: an old life", push((0, {}), opening=opened(epoch=4)), "is in epoch 5, not 4", MOVED),
    Sent("push: no message", raw("Push", b"\xff\xff\xff"), "a message of 3 bytes that cannot be read: .*"),
    Sent("push: a message that ends early", raw("Push", b"\x12\x40\x08"),
         "a message of 3 bytes that cannot be read: .*"),
    Sent("push: an opening that is none", raw("Push", b"\x0a\x02\xff\xff"), "2 bytes that are no PushOpening"),
    Sent("push: nothing", raw("Push", b""), "a push begins with its opening"),
    Sent("pull: no message", raw("Pull", b"\xff\xff"), "2 bytes that are no PullRequest"),
    Sent("pull: a segment that is not known", pull(segments=[4000]), "segment 4000 is not on this shard"),
    Sent("pull: a vector that is not known", pull(vector="best.9"), r"segment 0: no vector 'best\.9' yet"),
    Sent("pull: more versions than segments", pull(if_newer_than=[1, 2]), "2 versions for 1 segments"),
    Sent("pull: another job", pull(target=wire.Target(job="mnist", shard_epoch=5)),
         "a call for job 'mnist' is not for this shard"),
    Sent("pull: an old life", pull(target=wire.Target(job="digits", shard_epoch=4)), "is in epoch 5, not 4", MOVED),
    Sent("configure: a leader that leads no more", told(command=wire.Command(leader_epoch=0, id=1), stop=True),
         "leader epoch 0 is over, 1 leads"),
    Sent("configure: a rule that is not known", told(assignment=wire.Assignment(rule=segments.Rule(name="adagard"))),
         ".*adagard.*", INVALID),
    Sent("snapshot: into a file", stored("Snapshot", folder=__file__), ".*: cannot be made: File exists", INTERNAL),
    Sent("restore: a set that is not there", stored("Restore", folder="/nowhere"), ".*lacks segment 0.*", LOST),
]  # fmt: skip


@pytest.fixture(scope="module")
def shards() -> Iterator[Job]:
    job = Job()
    yield job
    job.close()


def everything(job: Job) -> Any:
    """All that a refused call must leave as it was."""
    shards = [service.controller.shard for service in job.services]
    assert all(shards)
    return [
        (index, {name: values.tobytes() for name, values in held.vectors.items()}, held.version, dict(held.ledger.last))
        for shard in shards
        for index, held in (shard.segments.items() if shard else ())
    ], [(one.job, one.epoch, one.stopped.is_set()) for one in (service.controller for service in job.services)]


@pytest.mark.processes
@pytest.mark.parametrize("sent", TO_A_SHARD, ids=str)
def test_a_shard_refuses(sent: Sent, shards: Job, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(shards)
    with pytest.raises(grpc.RpcError) as caught:
        sent.send(shards)
    assert re.fullmatch(WHERE + sent.says, caught.value.details() or ""), caught.value.details()
    assert caught.value.code() is sent.code
    assert everything(shards) == before
    assert [one.index for one in shards.pulled(0, segments=[0])] == [0], "it serves all others as before"
    assert capsys.readouterr().err == ""


@pytest.mark.processes
def test_surplus_segments_are_refused_after_the_counted(shards: Job) -> None:
    """A push of one segment goes on with another: the first is done, the second is not."""
    begin = wire.PushRequest(opening=push_to_wire(GOOD, shards.target(), SGD, 1))
    two = wire.PushRequest(opening=begin.opening, segments=[shards.part(5).segments[0], shards.part(6).segments[0]])
    untouched = shards.pulled(0, segments=[6])
    with pytest.raises(grpc.RpcError, match="a push of 1 segments went on with segment 6"):
        list(shards.stubs[0].Push(iter([two])))
    assert shards.pulled(0, segments=[6]) == untouched


# -- to a coordinator ----------------------------------------------------------------------------------------


def join(role: int = coordination.ROLE_REPLICA, **fields: Any) -> Any:
    """Ask to be a member."""
    request = {"role": role, "job": "test", "token": 99, "layout": layout_to_wire(LAYOUT), **fields}
    return lambda stub: stub.Join(coordination.JoinRequest(**request))


def tensor(**fields: Any) -> list[coordination.Tensor]:
    """A layout of one tensor."""
    return [coordination.Tensor(**{"name": "w", "shape": [4], **fields})]


def garbage(stub: Any) -> None:
    """Bytes that are no message."""
    with open_channel(stub.address) as channel:
        channel.unary_unary("/dbelief.v1.Coordinator/Join", bytes, bytes)(b"\xff\xff\xff")


TO_A_COORDINATOR = [
    Sent("join: no role", join(coordination.ROLE_UNSPECIFIED), "a member is a shard, a replica or a client"),
    Sent("join: a role that is not known", join(77), "a member is a shard, a replica or a client"),
    Sent("join: another job", join(job="mnist"), "this coordinator runs job 'test', not 'mnist'"),
    Sent("join: one shard too many", join(coordination.ROLE_SHARD, layout=[]),
         "all 2 shards of the job have joined; .*", grpc.StatusCode.RESOURCE_EXHAUSTED),
    Sent("join: a replica without a layout", join(layout=[]), "a replica joins with its model's layout"),
    Sent("join: a replica with another layout", join(layout=layout_to_wire(OTHER_LAYOUT)), ".*another layout.*"),
    Sent("join: a replica with another source", join(source_digest="x"), ".*source.*"),
    Sent("join: samples that are no form", join(samples="{}"), "a member's samples: no form of samples: .*"),
    Sent("join: a layout that fits no tensor", join(layout=tensor(box_start=[0], box_stop=[9])), "layout: .* fit .*",
         INVALID),
    Sent("join: a layout with a part missing", join(layout=tensor(box_start=[0], box_stop=[2])), "layout: .*", INVALID),
    Sent("join: a layout of nothing", join(layout=tensor(shape=[0])), "the model has no parameters", INVALID),
    Sent("join: no message", garbage, "3 bytes are no message: .*", INVALID),
    Sent("beat: no role", lambda stub: stub.Beat(coordination.BeatRequest(id=0)), "a member is a shard, .*"),
]  # fmt: skip

Reply = Callable[[Any], Any]
IGNORED: dict[str, tuple[Reply, Reply]] = {
    "lease: a replica that is not known": (
        lambda stub: stub.Lease(coordination.LeaseRequest(replica=7, incarnation=77, last_lease=1)),
        lambda reply: reply.stop == "replica 7 was removed; its work was reassigned",
    ),
    "beat: a member that is not known": (
        lambda stub: stub.Beat(coordination.BeatRequest(role=coordination.ROLE_REPLICA, id=7, incarnation=77)),
        lambda reply: not reply.member,
    ),
    "report: progress of a replica that is not known": (
        lambda stub: stub.Report(
            coordination.ReportRequest(replica=7, incarnation=77, progress=coordination.Progress(lease=1, samples=9))
        ),
        lambda reply: reply == coordination.ReportReply(beat_now=True, report_every_s=reply.report_every_s),
    ),
    "report: samples skipped by a replica that is not known": (
        lambda stub: stub.Report(
            coordination.ReportRequest(
                replica=7, incarnation=77, skipped=[coordination.SkippedSamples(lease=1, stop=9)]
            )
        ),
        lambda reply: reply == coordination.ReportReply(beat_now=True, report_every_s=reply.report_every_s),
    ),
    "report: skipped samples of leases that are not granted, and of none": (
        lambda stub: stub.Report(
            coordination.ReportRequest(
                replica=stub.world.replicas[0].number,
                incarnation=stub.world.replicas[0].incarnation,
                skipped=[coordination.SkippedSamples(lease=lease, start=5, stop=1) for lease in (0, 1, 2**63)],
            )
        ),
        lambda reply: reply == coordination.ReportReply(report_every_s=reply.report_every_s),
    ),
    "report: trouble of a life that is over": (
        lambda stub: stub.Report(coordination.ReportRequest(replica=7, incarnation=77, trouble="NaN")),
        lambda reply: reply == coordination.ReportReply(beat_now=True, report_every_s=reply.report_every_s),
    ),
    "report: an evaluation that nobody asked for": (
        lambda stub: stub.Report(
            coordination.ReportRequest(replica=7, incarnation=77, evaluation=coordination.Evaluation(lease=9, loss=0.1))
        ),
        lambda reply: reply.store_as == "",
    ),
}


class Coordinator:
    """A coordinator of a job that trains, behind a real server."""

    def __init__(self) -> None:
        self.world = World(make_job()).started()
        service = CoordinatorService(Steps(self.world))  # type: ignore[arg-type]
        self.server = Server(
            "127.0.0.1:0", lambda server: coordination_stubs.add_CoordinatorServicer_to_server(service, server)
        )
        self.address = self.server.address
        self.channel = open_channel(self.address)
        stub = coordination_stubs.CoordinatorStub(self.channel)
        self.Join, self.Beat, self.Lease, self.Report = stub.Join, stub.Beat, stub.Lease, stub.Report
        self.Status = stub.Status

    def state(self) -> dict[str, str]:
        """All that must stay as it is."""
        return serialize(self.world.machine, self.world.now_s)

    def close(self) -> None:
        """End the server."""
        self.channel.close()
        self.server.close()


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    yield coordinator
    coordinator.close()


@pytest.mark.processes
@pytest.mark.parametrize("sent", TO_A_COORDINATOR, ids=str)
def test_a_coordinator_refuses(sent: Sent, coordinator: Coordinator, capsys: pytest.CaptureFixture[str]) -> None:
    before = coordinator.state()
    with pytest.raises(grpc.RpcError) as caught:
        sent.send(coordinator)
    assert re.fullmatch(sent.says, caught.value.details() or ""), caught.value.details()
    assert caught.value.code() is sent.code
    assert coordinator.state() == before
    assert capsys.readouterr().err == ""


@pytest.mark.processes
@pytest.mark.parametrize("what", IGNORED)
def test_a_coordinator_is_not_moved_by(what: str, coordinator: Coordinator) -> None:
    send, is_right = IGNORED[what]
    before = coordinator.state()
    assert is_right(send(coordinator))
    assert coordinator.state() == before
    assert coordinator.Status(coordination.StatusRequest()).state == coordination.STATE_READY
