"""Channels and servers of gRPC, and connections of direct streams, behind one object that a simulation can replace."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from concurrent.futures import Executor

import grpc

from dbelief.process.replaceable import replaceable

from . import token_connection
from .token_connection import TokenListener
from .wire.message_socket import MessageSocket

Options = Sequence[tuple[str, int | str]]


class Transport:
    """gRPC, and direct streams, over TCP. A simulation overrides all methods.

    A channel makes unary calls and streams: send, receive, half-close, cancel. A server runs the handlers that services
    register. Credentials, tokens, limits and the codes of errors are above it: see `open_channel` and `Server`.
    """

    def channel(self, address: str, options: Options, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        """A channel to `host:port`; it connects when it is used."""
        if credentials is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, credentials, options=options)

    def server(
        self, threads: Executor, interceptors: Sequence[grpc.ServerInterceptor], options: Options, calls: int
    ) -> grpc.Server:
        """A server that is not started, and refuses more than `calls` concurrent calls."""
        return grpc.server(
            threads,  # type: ignore[arg-type]  # any executor works
            interceptors=list(interceptors),
            options=options,
            maximum_concurrent_rpcs=calls,
        )

    def listen(self, host: str, tls: ssl.SSLContext | None) -> TokenListener:
        """A listener for a direct stream, at an address of this host."""
        return TokenListener(host, tls)

    def connect(
        self, host: str, port: int, token: bytes, tls: ssl.SSLContext | None, timeout_s: float
    ) -> MessageSocket:
        """Connect to a listener, and show it its token; see `token_connection.connect`."""
        return token_connection.connect(host, port, token, tls, timeout_s)


transport, use_transport = replaceable(Transport())
