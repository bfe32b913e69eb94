import socket

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dbelief.errors import Mistake, Unreachable
from dbelief.rpc.channel import open_channel, wait_ready
from dbelief.rpc.serving import Server

pytestmark = pytest.mark.processes


def test_a_server_answers_until_it_is_closed() -> None:
    server = Server("127.0.0.1:0", lambda _: None)
    assert server.address == f"127.0.0.1:{server.port}"
    with open_channel(server.address) as channel:
        wait_ready(channel, 5.0, "the server")
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    server.close()
    with (
        open_channel(server.address) as channel,
        pytest.raises(Unreachable, match="the server did not answer"),
    ):
        wait_ready(channel, 0.05, "the server")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Mistake, match=rf"cannot listen on {address}: "):
            Server(address, lambda _: None)


def test_two_servers_never_share_a_port() -> None:
    first = Server("127.0.0.1:0", lambda _: None)
    try:
        with pytest.raises(Mistake, match="cannot listen"):
            Server(first.address, lambda _: None)
    finally:
        first.close()
