"""Channels and servers of gRPC, behind one object that a simulation can replace."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import grpc

from dbelief.process.replaceable import replaceable

Options = Sequence[tuple[str, int | str]]


class Transport:
    """gRPC over TCP. A simulation overrides both methods.

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


transport, use_transport = replaceable(Transport())
