"""Starting and ending a gRPC server, with the standard health service beside ours."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from dbelief.errors import Mistake

from .channel import OPTIONS

HANDLERS = 4096
"""Most threads of a server; one is made when a call finds none free. A stream holds one for as long as it is open."""


class Server:
    """A listening gRPC server.

    Parameters
    ----------
    listen
        `host:port`; port 0 takes any free one.
    register
        Called with the gRPC server to add services to it.
    handlers
        Most threads for calls.

    Raises
    ------
    Mistake
        Where the address cannot be bound.
    """

    def __init__(self, listen: str, register: Callable[[grpc.Server], None], handlers: int = HANDLERS) -> None:
        self._health = health.HealthServicer()
        # Two processes on one port would share its calls at random: better to fail at the start.
        options = (*OPTIONS, ("grpc.so_reuseport", 0))
        self._server = grpc.server(ThreadPoolExecutor(handlers, "handler"), options=options)
        register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError:
            port = 0
        if not port:
            raise Mistake(f"cannot listen on {listen}: is the address this host's, and the port free?")
        self.port = port
        self.address = f"{listen.rpartition(':')[0]}:{port}"
        self._server.start()
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def close(self, grace_s: float = 1.0) -> None:
        """Refuse new calls, give running ones `grace_s`, and end."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 5.0)
