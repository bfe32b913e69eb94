"""Start and stop of a gRPC server, with the standard health and reflection services beside ours."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dbelief.errors import Unavailable, UserError
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import host_and_port, unknown_host
from dbelief.rpc.channel import OPTIONS, SERVER_AHEAD
from dbelief.rpc.keepalive import KEEPALIVE, Keepalive
from dbelief.rpc.transport import transport
from dbelief.security import Credentials, current, may_listen, must_show

from .auth import PEER_CALLS, AuthInterceptor
from .handler_threads import HandlerThreads

HANDLERS = 4096
"""Maximum number of handler threads of a server. A stream holds one while it is open."""

MESSAGES = ("grpc.max_receive_message_length", 64 << 20)
"""Longest message that a server accepts; segments have 1 MiB, layouts of millions of tensors less than this limit, and
longer rows of tables are cut (`bulk.LONGEST_PAYLOAD`)."""

STRANGERS = (
    # A call holds a thread from its start, before its first message and our own count.
    ("grpc.max_concurrent_streams", PEER_CALLS + 16),
    # Each connection is a file descriptor.
    ("grpc.max_allowed_incoming_connections", 4096),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
"""Limits on clients that are not authenticated yet."""


class Server:
    """A listening gRPC server.

    Parameters
    ----------
    listen
        `host:port`; port 0 selects any free one.
    register
        Called with the gRPC server to add a service to it.
    contract
        That service, for tools that use reflection (grpcurl, grpcui); None: reflection shows health only.
    handlers
        Maximum number of handler threads; further calls are refused.
    credentials
        None: this process's. With credentials it requires TLS, a certificate of the same authority, and a token.
        Without them it serves, on loopback, the processes of its own user.

    Raises
    ------
    UserError
        The address is invalid, or cannot be bound, or other machines can reach it and there are no credentials.
    """

    def __init__(
        self,
        listen: str,
        register: Callable[[grpc.Server], None],
        contract: ServiceDescriptor | None = None,
        handlers: int = HANDLERS,
        credentials: Credentials | None = None,
        keepalive: Keepalive = KEEPALIVE,
    ) -> None:
        host, _ = host_and_port(listen)
        mine = credentials or current()
        if mine is None:
            may_listen(listen)
        self._health = _Health()
        # Two processes on one port would share its calls at random: fail at the start instead.
        options = (*OPTIONS, *keepalive.options, SERVER_AHEAD, MESSAGES, *STRANGERS, ("grpc.so_reuseport", 0))
        guard = AuthInterceptor(mine)
        self._handlers = HandlerThreads(handlers)
        self._server = transport.server(self._handlers, [guard], options, handlers)
        register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        ours = [contract.full_name] if contract is not None else []
        reflection.enable_server_reflection([*ours, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        try:
            port = (
                self._server.add_secure_port(listen, _shown(mine)) if mine else self._server.add_insecure_port(listen)
            )
        except RuntimeError:
            port = 0
        if not port:
            raise _not_ours(listen)
        self.port = port
        self.address = f"{host}:{port}"
        if mine is None:
            guard.owner = must_show(self.address)
        self._server.start()
        for service in ("", *ours):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def close(self, grace_s: float = 1.0) -> None:
        """Refuse new calls, let running ones finish for `grace_s`, and stop."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 5.0)
        self._handlers.shutdown()


class _Health(health.HealthServicer):  # type: ignore[misc]  # it has no types
    """Health service for `Check` only: a `Watch` call would be kept, with the name that it watches."""

    def Watch(self, request: Any, context: grpc.ServicerContext) -> NoReturn:
        """Refuse the call."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask by Check, again and again")
        raise AssertionError("abort returns nowhere")


def _shown(mine: Credentials) -> grpc.ServerCredentials:
    """TLS that requires a client certificate of the same authority."""
    return grpc.ssl_server_credentials([(mine.key, mine.certificate)], mine.authority, require_client_auth=True)


def _not_ours(listen: str) -> UserError:
    host, port = host_and_port(listen)
    try:
        socket.getaddrinfo(host.strip("[]"), port)
    except socket.gaierror as error:
        return UserError(f"cannot listen on {listen}: {unknown_host(host, error)}")
    return UserError(f"cannot listen on {listen}: is the address this host's, and the port free?")


def check_free(listen: str) -> None:
    """Check that `host:port` can be bound, before a long start-up.

    Raises
    ------
    UserError
        It cannot.
    """
    host, port = host_and_port(listen)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError:
        raise _not_ours(listen) from None


def is_every_address(listen: str) -> bool:
    """Whether `host:port` means all addresses of this host, so that other hosts cannot use it as an address."""
    return listen.rpartition(":")[0] in ("", "0.0.0.0", "[::]")


def address_towards(peer: str, port: int, patience_s: float = 0.0) -> str:
    """This host's address on the route to `peer` (`host:port`), with the given port.

    Hosts of the peer's network reach it there, whatever its names: so it is right in a container too. Nothing is sent:
    connecting a datagram socket only selects the route.

    Parameters
    ----------
    patience_s
        Time to retry where a name server gives no reply, as happens while containers start.

    Raises
    ------
    Unavailable
        The peer's name cannot be resolved, or there is no route to it.
    UserError
        The route does not leave this host, so that the address for other hosts is unknown.
    """
    until_s = runtime.monotonic() + patience_s
    while True:
        try:
            own = own_host(peer)
            break
        except OSError as error:
            if runtime.monotonic() >= until_s:
                unknown = isinstance(error, socket.gaierror)
                why = unknown_host(host_and_port(peer)[0], error) if unknown else error.strerror or error
                raise Unavailable(f"no way to {peer}: {why}") from error
        runtime.sleep(0.2)
    if own == "::1" or own.startswith("127."):
        raise UserError(
            f"{peer} is on this host, so the address for other hosts is unknown: give --advertise HOST:PORT"
        )
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def own_host(peer: str) -> str:
    """This host's address, without a port, on the route to `peer` (`host:port`); raises OSError where there is none."""
    host, _, port = peer.rpartition(":")
    family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as way:
        way.connect(place)
        own: str = way.getsockname()[0]
    return own
