"""Starting and ending a gRPC server, with the standard health and reflection services beside ours."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dbelief.errors import Unavailable, UserError
from dbelief.process.console import host_and_port
from dbelief.rpc.channel import OPTIONS, SERVER_AHEAD
from dbelief.rpc.keepalive import KEEPALIVE, Keepalive
from dbelief.security import Credentials, current, may_listen, must_show

from .auth import PEER_CALLS, AuthInterceptor
from .handler_threads import HandlerThreads

HANDLERS = 4096
"""Most threads of a server. A stream holds one for as long as it is open."""

MESSAGES = ("grpc.max_receive_message_length", 64 << 20)
"""Longest message that a server takes in; segments come in 1 MiB, layouts of millions of tensors in less than this."""

STRANGERS = (
    # A call holds a thread from when it begins, before its first message and our own count.
    ("grpc.max_concurrent_streams", PEER_CALLS + 16),
    # Each connection is a file.
    ("grpc.max_allowed_incoming_connections", 4096),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
"""What nobody passes who has not been let in yet."""


class Server:
    """A listening gRPC server.

    Parameters
    ----------
    listen
        `host:port`; port 0 takes any free one.
    register
        Called with the gRPC server to add a service to it.
    contract
        That service, as tools that ask what is served (grpcurl, grpcui) are told of it; None: they hear of no more
        than health.
    handlers
        Most threads for calls; one more is refused.
    credentials
        None: this process's. With them it speaks TLS, to those of the same authority, and wants a token. Without them
        it serves, on loopback, the processes of its own user.

    Raises
    ------
    Mistake
        Where it is no address, or cannot be bound, or other machines reach it and there are no credentials.
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
        # Two processes on one port would share its calls at random: better to fail at the start.
        options = (*OPTIONS, *keepalive.options, SERVER_AHEAD, MESSAGES, *STRANGERS, ("grpc.so_reuseport", 0))
        guard = AuthInterceptor(mine)
        self._handlers = HandlerThreads(handlers)
        self._server = grpc.server(
            self._handlers,  # type: ignore[arg-type]  # any executor will do
            interceptors=[guard],
            options=options,
            maximum_concurrent_rpcs=handlers,
        )
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
        """Refuse new calls, give running ones `grace_s`, and end."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 5.0)
        self._handlers.shutdown()


class _Health(health.HealthServicer):  # type: ignore[misc]  # it has no types
    """Tells whether this process serves, to those who ask once: who watches is kept, with the name it watches."""

    def Watch(self, request: Any, context: grpc.ServicerContext) -> NoReturn:
        """Refuse it."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask by Check, again and again")
        raise AssertionError("abort returns nowhere")


def _shown(mine: Credentials) -> grpc.ServerCredentials:
    """TLS for those who show a certificate of the same authority."""
    return grpc.ssl_server_credentials([(mine.key, mine.certificate)], mine.authority, require_client_auth=True)


def _not_ours(listen: str) -> UserError:
    return UserError(f"cannot listen on {listen}: is the address this host's, and the port free?")


def check_free(listen: str) -> None:
    """See whether `host:port` can be listened on, for those who have much to do before they do.

    Raises
    ------
    Mistake
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
    """Whether `host:port` means all addresses of this host, and so none that another could call."""
    return listen.rpartition(":")[0] in ("", "0.0.0.0", "[::]")


def address_towards(peer: str, port: int, patience_s: float = 0.0) -> str:
    """This host's address on the way to `peer` (`host:port`), with a port of its own.

    Hosts of the peer's network reach it there, whatever names they have: so it is right in a container too. Nothing is
    sent: to connect a datagram socket only chooses the way.

    Parameters
    ----------
    patience_s
        How long to ask again where a name server gives no answer, as happens while containers start.

    Raises
    ------
    Unreachable
        Nobody knows the peer's name, or a way to it.
    Mistake
        The way does not leave this host, so that others cannot be told how to reach it.
    """
    until_s = time.monotonic() + patience_s
    while True:
        try:
            own = own_host(peer)
            break
        except OSError as error:
            if time.monotonic() >= until_s:
                raise Unavailable(f"no way to {peer}: {error.strerror or error}") from error
        time.sleep(0.2)
    if own == "::1" or own.startswith("127."):
        raise UserError(
            f"{peer} is on this host, which does not tell by which address others reach it: give --advertise HOST:PORT"
        )
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def own_host(peer: str) -> str:
    """This host's address, without a port, on the way to `peer` (`host:port`); raises OSError where there is none."""
    host, _, port = peer.rpartition(":")
    family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as way:
        way.connect(place)
        own: str = way.getsockname()[0]
    return own
