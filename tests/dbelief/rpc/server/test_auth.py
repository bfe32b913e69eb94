"""Real servers with credentials, and callers without permission."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dbelief.errors import DbeliefError, Rejected, ResourceExhausted, Unavailable
from dbelief.rpc.channel import answers, named_errors, open_channel, streams
from dbelief.rpc.pb import coordination_pb2, parameters_pb2
from dbelief.rpc.pb import coordination_pb2_grpc as coordination
from dbelief.rpc.pb import parameters_pb2_grpc as parameters
from dbelief.rpc.server.auth import PEER_CALLS, must_be
from dbelief.rpc.server.server import MESSAGES, Server
from dbelief.security import PERSONS, ROLES, Credentials, identity
from dbelief.security.permissions import PERMISSIONS

pytestmark = pytest.mark.processes

Roles = Callable[[str], Credentials]
WAIT_S = 60.0


class _Coordinator(coordination.CoordinatorServicer):
    @answers
    def Join(self, request: Any, context: Any) -> coordination_pb2.JoinReply:
        must_be("worker")
        return coordination_pb2.JoinReply(id=7)

    @answers
    def Status(self, request: Any, context: Any) -> coordination_pb2.StatusReply:
        return coordination_pb2.StatusReply(job="guarded")

    @answers
    def Stop(self, request: Any, context: Any) -> coordination_pb2.StopReply:
        return coordination_pb2.StopReply()


class _Shard(parameters.ParametersServicer):
    """Whose pulls wait until they may end."""

    def __init__(self) -> None:
        self.go = threading.Event()

    @answers
    def Snapshot(self, request: Any, context: Any) -> parameters_pb2.SnapshotReply:
        return parameters_pb2.SnapshotReply()

    @streams
    def Pull(self, requests: Iterator[Any], context: Any) -> Iterator[parameters_pb2.PullReply]:
        for _ in requests:
            yield parameters_pb2.PullReply()
            assert self.go.wait(WAIT_S)


@pytest.fixture
def coordinator(ours: Roles) -> Iterator[str]:
    server = Server(
        "127.0.0.1:0",
        lambda s: coordination.add_CoordinatorServicer_to_server(_Coordinator(), s),  # type: ignore[abstract]
        credentials=ours("coordinator"),
    )
    yield server.address
    server.close(0.0)


@pytest.fixture
def pulled() -> _Shard:
    return _Shard()  # type: ignore[abstract]


@pytest.fixture
def shard(ours: Roles, pulled: _Shard) -> Iterator[str]:
    server = Server(
        "127.0.0.1:0", lambda s: parameters.add_ParametersServicer_to_server(pulled, s), credentials=ours("ps")
    )
    yield server.address
    pulled.go.set()
    server.close(0.0)


def _status(address: str, credentials: Credentials | None, role: str = "coordinator") -> str:
    with open_channel(address, role, credentials) as channel, named_errors("the coordinator"):
        reply = coordination.CoordinatorStub(channel).Status(coordination_pb2.StatusRequest(), timeout=WAIT_S)
    return str(reply.job)


def _stop(address: str, credentials: Credentials) -> None:
    with open_channel(address, "coordinator", credentials) as channel, named_errors("the coordinator"):
        coordination.CoordinatorStub(channel).Stop(coordination_pb2.StopRequest(), timeout=WAIT_S)


def _snapshot(address: str, credentials: Credentials) -> None:
    with open_channel(address, "ps", credentials) as channel, named_errors("the shard"):
        parameters.ParametersStub(channel).Snapshot(parameters_pb2.SnapshotRequest(), timeout=WAIT_S)


def test_a_caller_without_a_certificate_is_refused(coordinator: str, ours: Roles) -> None:
    mine = ours("worker")
    shown = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(mine.authority), grpc.access_token_call_credentials(mine.token)
    )
    options = [("grpc.ssl_target_name_override", "coordinator.dbelief")]
    with (
        grpc.secure_channel(coordinator, shown, options=options) as channel,
        pytest.raises(Unavailable),
        named_errors("the coordinator"),
    ):
        coordination.CoordinatorStub(channel).Status(coordination_pb2.StatusRequest(), timeout=WAIT_S)


def test_a_caller_without_tls_is_refused(coordinator: str) -> None:
    with pytest.raises(Unavailable):
        _status(coordinator, None)


@pytest.mark.parametrize("side", ["theirs", "ours"])
def test_another_authority_is_refused(side: str, coordinator: str, folders: dict[str, Path], ours: Roles) -> None:
    """`theirs`: the server does not know the caller's; `ours`: the caller does not know the server's."""
    theirs, mine = Credentials.read(folders["others"] / "operator"), ours("operator")
    if side == "theirs":
        strange = dataclasses.replace(theirs, authority=mine.authority, token=mine.token)
    else:
        strange = dataclasses.replace(mine, authority=theirs.authority)
    with pytest.raises(Unavailable):
        _status(coordinator, strange)


def test_a_certificate_that_has_ended_is_refused(coordinator: str, ours: Roles, tmp_path: Path) -> None:
    """Signed by the job's own authority, so that its time is all that is wrong with it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from dbelief.security.certificates import AUTHORITY_KEY, CLOCKS_APART, Authority

    folder = ours("worker").folder.parent
    key: Any = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    half_an_hour_ago = -0.5 * CLOCKS_APART.total_seconds() / 86_400
    for days, ended in ((1.0, False), (half_an_hour_ago, True)):
        mine, key_of_mine = Authority(certificate, key, days).issue("worker", ())
        shown = dataclasses.replace(ours("worker"), certificate=mine, key=key_of_mine)
        if ended:
            with pytest.raises(Unavailable):
                _status(coordinator, shown)
        else:
            assert _status(coordinator, shown) == "guarded"


@pytest.mark.parametrize(
    ("token", "why"), [("", "it brings no token"), ("guess", "its token is not this job's")], ids=["none", "wrong"]
)
def test_a_caller_without_a_token_of_the_job_is_refused(token: str, why: str, coordinator: str, ours: Roles) -> None:
    with pytest.raises(Rejected, match=why):
        _status(coordinator, dataclasses.replace(ours("worker"), token=token))


@pytest.mark.parametrize("role", [*ROLES, *PERSONS])
def test_only_a_coordinators_token_commands_a_shard(role: str, shard: str, ours: Roles) -> None:
    if role == "coordinator":
        return _snapshot(shard, ours(role))
    with pytest.raises(Rejected, match=f"Snapshot is for coordinator, and the token for {role}"):
        _snapshot(shard, ours(role))


@pytest.mark.parametrize("method", sorted(PERMISSIONS))
def test_rights_are_asked_before_the_method(
    method: str, coordinator: str, shard: str, pulled: _Shard, ours: Roles
) -> None:
    """Of every method of both servers: who may not call it hears so, and no more; whoever may, what it answers."""
    address, role = (coordinator, "coordinator") if "Coordinator" in method else (shard, "ps")
    pulled.go.set()
    for caller in (*ROLES, *PERSONS):
        with open_channel(address, role, ours(caller)) as channel:
            call: Any = channel.stream_stream(method)
            made = call(iter([b""]), timeout=WAIT_S)
            with contextlib.suppress(grpc.RpcError):
                list(made)
        answered = (grpc.StatusCode.OK, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION)
        assert made.code() in (answered if caller in PERMISSIONS[method] else (grpc.StatusCode.PERMISSION_DENIED,))


def test_a_token_under_another_roles_certificate_is_refused(shard: str, ours: Roles) -> None:
    """A shard hears the coordinator's token with every command; it may not go on to command others with it."""
    for role in (*ROLES, *PERSONS):
        mixed = dataclasses.replace(ours(role), token=ours("coordinator").token)
        if role == "coordinator":
            _snapshot(shard, mixed)
        else:
            with pytest.raises(Rejected, match=f"a token for coordinator under a certificate for {role}"):
                _snapshot(shard, mixed)


def test_unauthorized_calls_hold_no_thread(ours: Roles) -> None:
    """Calls that never send their message: without a token they are answered at once."""
    server = Server(
        "127.0.0.1:0",
        lambda s: coordination.add_CoordinatorServicer_to_server(_Coordinator(), s),  # type: ignore[abstract]
        handlers=4,
        credentials=ours("coordinator"),
    )
    hold = threading.Event()

    def nothing() -> Iterator[bytes]:
        hold.wait(WAIT_S)
        yield from ()

    with open_channel(server.address, "coordinator", dataclasses.replace(ours("worker"), token="")) as channel:
        call: Any = channel.stream_stream("/dbelief.v1.Coordinator/Status")
        for _ in range(12):
            with pytest.raises(grpc.RpcError, match="it brings no token"):
                next(call(nothing(), timeout=WAIT_S))
        assert _status(server.address, ours("viewer")) == "guarded"
        hold.set()
    server.close(0.0)


def test_bytes_that_are_no_message_leave_nothing_open(coordinator: str, ours: Roles) -> None:
    """Far more calls than a connection may have at a time."""
    with open_channel(coordinator, "coordinator", ours("viewer")) as channel:
        call: Any = channel.unary_unary("/dbelief.v1.Coordinator/Status")
        for _ in range(2 * PEER_CALLS):
            with pytest.raises(Rejected, match="2 bytes are no message"), named_errors("the coordinator"):
                call(b"\xff\xff", timeout=WAIT_S)
        call(b"", timeout=WAIT_S)


def test_health_is_asked_and_not_watched(coordinator: str, ours: Roles) -> None:
    with open_channel(coordinator, "coordinator", ours("viewer")) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        with pytest.raises(grpc.RpcError) as caught:
            next(watch(b"", timeout=WAIT_S))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_connections_that_say_nothing_have_an_end(ours: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes in four lets go of the fifth, which would be one more open file."""
    monkeypatch.setattr("dbelief.rpc.server.server.STRANGERS", (("grpc.max_allowed_incoming_connections", 4),))
    server = Server("127.0.0.1:0", lambda _: None, credentials=ours("ps"))
    with contextlib.ExitStack() as stack:
        stack.callback(server.close, 0.0)
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S)) for _ in range(8)]
        for one in silent[4:]:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""


def test_server_of_another_role_is_not_accepted(shard: str, ours: Roles) -> None:
    """A shard's host that somebody broke into is no coordinator."""
    with pytest.raises(Unavailable):
        _status(shard, ours("worker"))


def test_a_method_may_ask_for_a_role_of_its_own(coordinator: str, ours: Roles) -> None:
    def join(role: str) -> int:
        with open_channel(coordinator, "coordinator", ours(role)) as channel, named_errors("the coordinator"):
            stub = coordination.CoordinatorStub(channel)
            return int(stub.Join(coordination_pb2.JoinRequest(), timeout=WAIT_S).id)

    assert join("worker") == 7
    with pytest.raises(Rejected, match="the caller's token is for ps, and this is for worker"):
        join("ps")


def test_one_connection_has_only_so_many_calls(shard: str, pulled: _Shard, ours: Roles) -> None:
    with open_channel(shard, "ps", ours("worker")) as channel:
        pull: Any = channel.stream_stream("/dbelief.v1.Parameters/Pull")
        hold = threading.Event()

        def requests() -> Iterator[bytes]:
            yield b""
            hold.wait(WAIT_S)

        calls: list[Any] = [pull(requests(), timeout=WAIT_S) for _ in range(PEER_CALLS)]
        for call in calls:
            next(call)
        with (
            pytest.raises(ResourceExhausted, match=f"{PEER_CALLS} calls of one connection are open already"),
            named_errors("it"),
        ):
            next(pull(requests(), timeout=WAIT_S))
        with open_channel(shard, "ps", ours("worker")) as another:  # which has its own
            pull_there: Any = another.stream_stream("/dbelief.v1.Parameters/Pull")
            next(pull_there(requests(), timeout=WAIT_S))
        pulled.go.set()
        hold.set()
        for call in calls:
            assert list(call) == []
        next(pull(iter([b""]), timeout=WAIT_S))


def test_a_message_that_is_too_long_is_refused(coordinator: str, ours: Roles) -> None:
    _, longest = MESSAGES
    with open_channel(coordinator, "coordinator", ours("worker")) as channel:
        call: Any = channel.unary_unary("/dbelief.v1.Coordinator/Status")
        with pytest.raises(ResourceExhausted, match="larger than max"), named_errors("the coordinator"):
            call(bytes(longest + 1), timeout=WAIT_S)


def test_refused_peers_get_the_reason(
    coordinator: str, folders: dict[str, Path], ours: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dbelief.rpc.server.health import check_serving

    reasons = {
        "others": r"its certificate is not signed by .*/others0/worker/ca\.crt, or not a server's",
        "": "it speaks TLS: give --credentials",
    }
    for name, reason in reasons.items():
        taken = Credentials.read(folders[name] / "worker") if name else None
        monkeypatch.setattr(identity._Identity, "loaded", taken)
        with pytest.raises(Unavailable, match=reason):
            check_serving(coordinator, 1.0)
    monkeypatch.setattr(identity._Identity, "loaded", ours("viewer"))
    check_serving(coordinator, WAIT_S)
    monkeypatch.setattr(identity._Identity, "loaded", None)
    plain = Server("127.0.0.1:0", lambda _: None)
    monkeypatch.setattr(identity._Identity, "loaded", ours("viewer"))
    with pytest.raises(Unavailable, match="it speaks no TLS"):
        check_serving(plain.address, 1.0)
    plain.close()


def test_nothing_of_a_token_is_in_a_refusal(coordinator: str, ours: Roles) -> None:
    with pytest.raises(DbeliefError) as caught:
        _stop(coordinator, ours("worker"))
    assert ours("worker").token not in str(caught.value)
