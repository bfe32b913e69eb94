import socket

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from dbelief.errors import Mistake, Unreachable
from dbelief.rpc import coordination_pb2, parameters_pb2
from dbelief.rpc.channel import open_channel, wait_ready
from dbelief.rpc.serving import Server

pytestmark = pytest.mark.processes

COORDINATOR = coordination_pb2.DESCRIPTOR.services_by_name["Coordinator"]
PARAMETERS = parameters_pb2.DESCRIPTOR.services_by_name["Parameters"]


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


@pytest.mark.parametrize("contract", [COORDINATOR, PARAMETERS], ids=["coordinator", "shard"])
def test_a_stranger_can_ask_what_is_served(contract: ServiceDescriptor) -> None:
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
