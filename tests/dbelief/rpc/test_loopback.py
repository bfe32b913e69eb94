"""Calls to servers without credentials on loopback: accepted from the server's own user only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from dbelief.errors import Rejected
from dbelief.rpc.channel import answers, open_channel, streams
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2, parameters_pb2
from dbelief.rpc.pb import coordination_pb2_grpc as coordination
from dbelief.rpc.pb import parameters_pb2_grpc as parameters
from dbelief.rpc.server.health import check_serving
from dbelief.rpc.server.server import Server
from dbelief.rpc.token_channel import BEARER, KEY, token_channel
from dbelief.security import Loopback, identity, loopback

pytestmark = pytest.mark.processes

WAIT_S = 60.0


class _Coordinator(coordination.CoordinatorServicer):
    @answers
    def Stop(self, request: Any, context: grpc.ServicerContext) -> coordination_pb2.StopReply:
        return coordination_pb2.StopReply(state=coordination_pb2.STATE_DONE)


class _Shard(parameters.ParametersServicer):
    @streams
    def Pull(self, requests: Iterator[Any], context: Any) -> Iterator[parameters_pb2.PullReply]:
        for _ in requests:
            yield parameters_pb2.PullReply()


def _serve(listen: str = "127.0.0.1:0") -> Server:
    def register(server: grpc.Server) -> None:
        coordination.add_CoordinatorServicer_to_server(_Coordinator(), server)  # type: ignore[abstract]
        parameters.add_ParametersServicer_to_server(_Shard(), server)  # type: ignore[abstract]

    return Server(listen, register)


@pytest.fixture
def server() -> Iterator[Server]:
    server = _serve()
    yield server
    server.close(0.0)


def _stop(channel: grpc.Channel) -> coordination_pb2.StopReply:
    return coordination.CoordinatorStub(channel).Stop(coordination_pb2.StopRequest(), timeout=WAIT_S)


def _pull(channel: grpc.Channel) -> int:
    requests = [parameters_pb2.PullRequest()] * 3
    return len(list(parameters.ParametersStub(channel).Pull(iter(requests), timeout=WAIT_S)))


@pytest.mark.parametrize("call", [_stop, _pull], ids=["a call", "a stream"])
@pytest.mark.parametrize("brought", [None, "", "00" * 40, "another's"])
def test_calls_without_the_users_token_are_refused(
    brought: str | None, call: Callable[[grpc.Channel], Any], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if brought == "another's":
        monkeypatch.setattr(loopback, "user_secret", lambda: bytes(32))
        brought = Loopback(server.address).text()
    with grpc.insecure_channel(server.address) as plain:
        channel = plain if brought is None else token_channel(plain, lambda: str(brought))
        with pytest.raises(grpc.RpcError, match=r"its own user alone.*--credentials, or this server --insecure") as one:
            call(channel)
    assert one.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_processes_of_the_same_user_need_nothing(server: Server) -> None:
    with open_channel(server.address) as channel:
        assert _pull(channel) == 3
        assert _stop(channel).state == coordination_pb2.STATE_DONE
        stub = coordination.CoordinatorStub(channel)
        assert stub.Stop.future(coordination_pb2.StopRequest(), timeout=WAIT_S).result().state
        reply, _ = stub.Stop.with_call(coordination_pb2.StopRequest(), metadata=(("a", "b"),), timeout=WAIT_S)
        assert reply.state
    check_serving(server.address, WAIT_S)
    check_serving(server.address.replace("127.0.0.1", "localhost"), WAIT_S)


def test_token_of_one_address_opens_no_other(server: Server) -> None:
    with grpc.insecure_channel(server.address) as plain:
        channel = token_channel(plain, Loopback("127.0.0.1:9").text)
        with pytest.raises(grpc.RpcError, match="its own user alone"):
            _stop(channel)


def test_a_call_that_began_before_the_server_is_made_again() -> None:
    """A coordinator comes back at its address while its members call."""
    first = _serve()
    address, old = first.address, Loopback(first.address).text()
    first.close(0.0)
    server = _serve(address)
    tokens = iter([old, old])
    client = CoordinatorClient(address, patience_s=WAIT_S)
    bearing = client._channel._interceptor  # type: ignore[attr-defined]
    fresh = bearing._token
    bearing._token = lambda: next(tokens, None) or fresh()
    client._stub = coordination.CoordinatorStub(client._channel)
    assert client.call("Stop", coordination_pb2.StopRequest()).state == coordination_pb2.STATE_DONE
    assert client.retries == 2
    client.close()
    server.close(0.0)


def test_insecure_server_is_open_to_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(identity._Identity, "insecure", True)
    server = _serve()
    with grpc.insecure_channel(server.address) as channel:
        assert _stop(channel).state
    assert f"--insecure: {server.address} is open to every user of this machine" in capsys.readouterr().err
    server.close(0.0)


def test_the_token_is_one_that_logs_hide(server: Server) -> None:
    from dbelief.process.log import _masked

    token = Loopback(server.address).text()
    assert token not in _masked(f"{KEY}: {BEARER}{token}")


def test_a_refusal_is_said_by_the_client_in_one_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "user_secret", lambda: bytes(32))
    with pytest.raises(Rejected, match="the call carries no token of theirs"):
        check_serving(server.address, WAIT_S)
