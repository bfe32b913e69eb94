import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from dbelief.errors import Rejected, Unavailable, UserError
from dbelief.process.runtime import runtime
from dbelief.rpc import channel
from dbelief.rpc.channel import open_channel, wait_ready
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2, coordination_pb2_grpc, parameters_pb2
from dbelief.rpc.server.health import check_serving
from dbelief.rpc.server.server import Server, address_towards, check_free, is_every_address
from dbelief.telemetry.http_server import WebServer, _Server
from tests.processes.conftest import wait_for

pytestmark = pytest.mark.processes

COORDINATOR = coordination_pb2.DESCRIPTOR.services_by_name["Coordinator"]
PARAMETERS = parameters_pb2.DESCRIPTOR.services_by_name["Parameters"]


def test_a_server_answers_until_it_is_closed() -> None:
    server = Server("127.0.0.1:0", lambda _: None)
    assert server.address == f"127.0.0.1:{server.port}"
    with open_channel(server.address) as channel:
        wait_ready(channel, 5.0, "the server")
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    server.close()
    with (
        open_channel(server.address) as channel,
        pytest.raises(Unavailable, match="the server did not answer"),
    ):
        wait_ready(channel, 0.05, "the server")


def test_a_long_wait_for_a_server_is_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with wrong credentials must not wait a minute without a word."""
    server = Server("127.0.0.1:0", lambda _: None)
    server.close()
    monkeypatch.setattr(channel, "QUIET_S", 0.05)
    with open_channel(server.address) as waiting, pytest.raises(Unavailable, match=r"did not answer within 0\.1 s: "):
        wait_ready(waiting, 0.1, "the server", server.address)
    assert caplog.messages == ["the server does not answer yet, waiting for up to 0.1 s: Connection refused"]


def test_an_unknown_name_to_listen_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    why = r"the host name 'none\.invalid' is not known: Name or service not known"
    with pytest.raises(UserError, match=rf"^cannot listen on none\.invalid:7071: {why}$"):
        check_free("none.invalid:7071")
    with pytest.raises(Unavailable, match=rf"^no way to none\.invalid:7071: {why}$"):
        address_towards("none.invalid:7071", 0)
    monkeypatch.setattr(_Server, "server_bind", unknown)
    with pytest.raises(UserError, match=rf"^the page cannot be served on none\.invalid:0: {why}$"):
        WebServer("none.invalid:0", lambda environment, start: [], "the page", ssl.create_default_context())


@pytest.mark.parametrize("contract", [COORDINATOR, PARAMETERS], ids=["coordinator", "shard"])
def test_reflection_lists_all_services_and_messages(contract: ServiceDescriptor) -> None:
    """As grpcurl does: the services by name, then every message of a method, without a proto at hand."""
    server = Server("127.0.0.1:0", lambda _: None, contract)
    try:
        with open_channel(server.address) as channel:
            told = ProtoReflectionDescriptorDatabase(channel)
            names = {contract.full_name, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
            assert set(told.get_services()) == names
            service = DescriptorPool(told).FindServiceByName(contract.full_name)
            for method in contract.methods:
                found = service.methods_by_name[method.name]
                for mine, theirs in ((method.input_type, found.input_type), (method.output_type, found.output_type)):
                    assert theirs is not mine
                    assert theirs.fields_by_name.keys() == mine.fields_by_name.keys()
    finally:
        server.close()


def test_two_servers_never_share_a_port() -> None:
    first = Server("127.0.0.1:0", lambda _: None)
    try:
        with pytest.raises(UserError, match=rf"cannot listen on {first.address}: "):
            Server(first.address, lambda _: None)
    finally:
        first.close()


def test_a_process_is_asked_whether_it_serves() -> None:
    server = Server("127.0.0.1:0", lambda _: None)
    check_serving(server.address, 5.0)
    server._health.enter_graceful_shutdown()
    with pytest.raises(Rejected, match=rf"the process at {server.address} is NOT_SERVING"):
        check_serving(server.address, 5.0)
    server.close()
    with pytest.raises(Unavailable, match=r"did not answer within 0\.05 s"):
        check_serving(server.address, 0.05)


@pytest.mark.parametrize(
    ("listen", "every"),
    [("0.0.0.0:7071", True), ("[::]:0", True), (":7071", True), ("127.0.0.1:0", False), ("10.0.0.7:7071", False)],
)
def test_wildcard_addresses_are_recognised(listen: str, every: bool) -> None:
    assert is_every_address(listen) is every


class _Way:
    """A datagram socket on a host whose address towards all others is `own`."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.places: list[object] = []

    def __call__(self, family: int, kind: int) -> "_Way":
        return self

    def __enter__(self) -> "_Way":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def connect(self, place: object) -> None:
        self.places.append(place)

    def getsockname(self) -> tuple[str, int]:
        return self.own, 40_000


@pytest.mark.parametrize(
    ("peer", "own", "address"),
    [("10.0.0.1:7070", "10.0.0.9", "10.0.0.9:7071"), ("[fd00::1]:7070", "fd00::9", "[fd00::9]:7071")],
)
def test_advertised_address_is_on_the_route_to_the_peer(
    peer: str, own: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = _Way(own)
    monkeypatch.setattr(socket, "socket", way)
    assert address_towards(peer, 7071) == address
    assert way.places == [(peer.rpartition(":")[0].strip("[]"), 7070, *[0, 0][: 2 * ("[" in peer)])]


@pytest.mark.parametrize("peer", ["127.0.0.1:7070", "[::1]:7070"])
def test_loopback_peer_needs_an_advertised_address(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", _Way(peer.rpartition(":")[0].strip("[]")))
    with pytest.raises(UserError, match=r"is on this host.*give --advertise"):
        address_towards(peer, 7071)


def test_a_name_server_that_gives_no_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")] * 2)
    known = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("10.0.0.1", 7070))]

    def look_up(*_: object, **__: object) -> object:
        for failure in answers:
            raise failure
        return known

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "socket", _Way("10.0.0.9"))
    monkeypatch.setattr(runtime, "sleep", lambda _: None)
    assert address_towards("coordinator:7070", 7071, patience_s=60.0) == "10.0.0.9:7071"


def test_unresolvable_peer_is_named() -> None:
    with pytest.raises(Unavailable, match=r"no way to nobody\.invalid:7070"):
        address_towards("nobody.invalid:7070", 7071)


class _Slow(coordination_pb2_grpc.CoordinatorServicer):
    """Holds its threads until it is let go."""

    def __init__(self) -> None:
        self.busy, self.go = threading.Event(), threading.Event()

    def Stop(self, request: Any, context: Any) -> coordination_pb2.StopReply:
        self.busy.set()
        assert self.go.wait(60.0)
        return coordination_pb2.StopReply()

    def Status(self, request: Any, context: Any) -> coordination_pb2.StatusReply:
        return coordination_pb2.StatusReply(job="mine")


def test_call_to_a_busy_server_is_retried() -> None:
    """Else a worker ends that calls at a bad moment."""
    slow = _Slow()  # type: ignore[abstract]
    server = Server(
        "127.0.0.1:0", lambda it: coordination_pb2_grpc.add_CoordinatorServicer_to_server(slow, it), handlers=1
    )
    client = CoordinatorClient(server.address, patience_s=60.0)
    with open_channel(server.address) as other, ThreadPoolExecutor(1) as pool:
        held = coordination_pb2_grpc.CoordinatorStub(other).Stop.future(coordination_pb2.StopRequest(), timeout=60)
        assert slow.busy.wait(60.0)
        with pytest.raises(Unavailable, match="Concurrent RPC limit exceeded"):
            client.call("Status", coordination_pb2.StatusRequest(), patience_s=0.0)
        asked = pool.submit(client.status)
        wait_for(lambda: client.retries or None, "a call that is made again")
        slow.go.set()
        assert asked.result(60.0).job == "mine"
        held.result()
    client.close()
    server.close()
