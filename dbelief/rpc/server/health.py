"""Health check of a process of the system, by gRPC's standard health service."""

from __future__ import annotations

from grpc_health.v1 import health_pb2, health_pb2_grpc

from dbelief.errors import Rejected
from dbelief.rpc.channel import named_errors, open_channel, wait_ready


def check_serving(address: str, timeout_s: float, service: str = "") -> None:
    """Return if the process at `host:port` serves.

    Parameters
    ----------
    service
        Full name of the service that it must serve; "": any.

    Raises
    ------
    Rejected
        It replies, but does not serve: it is shutting down, has no such service, or is another program.
    Unavailable
        It did not reply within `timeout_s`.
    """
    what = f"the process at {address}"
    with open_channel(address) as channel:
        wait_ready(channel, timeout_s, what, address)
        with named_errors(what):
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        raise Rejected(f"{what} is {health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)}")
