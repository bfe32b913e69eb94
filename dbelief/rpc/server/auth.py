"""Checks of every call before its handler: its token, the permissions of that role, and its connection's open calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import grpc

from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.token_channel import BEARER, KEY
from dbelief.security import Credentials, Loopback, Verdict
from dbelief.security.permissions import ALL, PERMISSIONS

PEER_CALLS = 256
"""Maximum number of open calls of one connection; a replica has a few streams to each shard."""

_CALLER: ContextVar[str] = ContextVar("caller", default="")
_Reads = Callable[[Any, grpc.ServicerContext], Any]


def caller() -> str:
    """Role of the current call's caller, in a unary method; "" where there are no credentials."""
    return _CALLER.get()


def must_be(*roles: str) -> None:
    """Check that the current call is from one of these roles; without credentials every caller passes.

    Raises
    ------
    Rejected
        It is from another role.
    """
    if caller() and caller() not in roles:
        raise Rejected(f"the caller's token is for {caller()}, and this is for {' or '.join(roles)}")


def must_be_for(method: str, context: grpc.ServicerContext) -> None:
    """Check that the caller of a stream of the shards' service may call another method of it, too.

    The role is that of the certificate, which was compared with that of the token. Without credentials every caller
    passes.

    Raises
    ------
    Rejected
        It may not.
    """
    shown = _certified(context)
    allowed = PERMISSIONS.get(f"/dbelief.v1.Parameters/{method}", ALL)
    if shown and shown[0] not in allowed:
        raise Rejected(f"{method} is for {', '.join(sorted(allowed))}, and the caller's certificate for {shown[0]}")


def _certified(context: grpc.ServicerContext) -> list[str]:
    """Roles of the caller's certificate; none without TLS."""
    proven: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]  # its real type
    return [name.decode(errors="replace") for name in proven.get("x509_common_name", ())]


def must_be_in(run_id: int, named: int) -> None:
    """Check that the current call is from the run of this process.

    Raises
    ------
    Rejected
        It is from another run, and the caller must exit.
    """
    if named != run_id:
        raise Rejected("the caller's run of the job is over: the job was restarted or resumed since")


class AuthInterceptor(grpc.ServerInterceptor):
    """Interceptor of all methods of a server.

    Parameters
    ----------
    credentials
        Of this server; None: it has none.

    Attributes
    ----------
    owner
        Checks that calls come from processes of this server's user, where there are no credentials; None: any process
        may call.
    """

    owner: Loopback | None = None

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self._guarded: dict[tuple[str, str], grpc.RpcMethodHandler[Any, Any]] = {}  # by method and role
        self._open: dict[str, int] = {}  # calls by connection
        self._lock = runtime.lock()

    def intercept_service(
        self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap a method; a caller without permission is refused before a message is read."""
        role, refusal = self._role(details)
        known = self._guarded.get((details.method, role)) if refusal is None else None
        if known is not None:
            return known
        handler = continuation(details)
        if handler is None:
            return None
        if refusal is not None:
            # As a stream, whatever the method's kind: a unary handler would block one of our threads for a message.
            return grpc.stream_stream_rpc_method_handler(_refusing(*refusal))
        guarded = self._guarded[details.method, role] = self._guard(handler, role)
        return guarded

    def _guard(self, handler: grpc.RpcMethodHandler[Any, Any], role: str) -> grpc.RpcMethodHandler[Any, Any]:
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            if (method := getattr(handler, kind)) is not None:
                read = _reads(handler.request_deserializer, streamed=kind.startswith("stream"))
                guarded = (self._streams if kind.endswith("stream") else self._answers)(role, method, read)
                make = getattr(grpc, f"{kind}_rpc_method_handler")
                return make(guarded, None, handler.response_serializer)  # type: ignore[no-any-return]
        raise AssertionError(f"{handler} is no method of gRPC")

    def _role(self, details: grpc.HandlerCallDetails) -> tuple[str, tuple[grpc.StatusCode, str] | None]:
        """Role of a call's token, and the reason of a refusal."""
        brought = str(dict(details.invocation_metadata).get(KEY, "")).removeprefix(BEARER)
        if self._credentials is None:
            return "", None if self.owner is None else _not_the_owners(self.owner, brought)
        role = self._credentials.role_of(brought)
        if role is None:
            trouble = "its token is not this job's" if brought else "it brings no token"
            return "", (grpc.StatusCode.UNAUTHENTICATED, f"{trouble}: `dbelief certs` makes one for each role")
        allowed = PERMISSIONS.get(details.method, ALL)
        if role not in allowed:
            method, others = details.method.rpartition("/")[2], ", ".join(sorted(allowed))
            return role, (grpc.StatusCode.PERMISSION_DENIED, f"{method} is for {others}, and the token for {role}")
        return role, None

    def _answers(self, role: str, method: Callable[[Any, Any], Any], read: _Reads) -> Callable[[Any, Any], Any]:
        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            peer = self._enter(role, context)
            before = _CALLER.set(role)
            try:
                return method(read(request, context), context)
            finally:
                _CALLER.reset(before)
                self._leave(peer)

        return guarded

    def _streams(self, role: str, method: Callable[[Any, Any], Any], read: _Reads) -> Callable[[Any, Any], Any]:
        def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            peer = self._enter(role, context)
            try:
                yield from method(read(request, context), context)
            finally:
                self._leave(peer)

        return guarded

    def _enter(self, role: str, context: grpc.ServicerContext) -> str:
        """Check that the certificate matches the token's role, and count the call; returns its peer, for `_leave`."""
        if role and (shown := _certified(context)) != [role]:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"a token for {role} under a certificate for {' '.join(shown)}"
            )
        peer = context.peer()
        with self._lock:
            self._open[peer] = calls = self._open.get(peer, 0) + 1
        if calls > PEER_CALLS:
            self._leave(peer)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{PEER_CALLS} calls of one connection are open already")
        return peer

    def _leave(self, peer: str) -> None:
        with self._lock:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]


def _reads(decode: Callable[[bytes], Any] | None, streamed: bool) -> _Reads:
    """Decoder of messages. A decoding failure inside gRPC itself leaves the call open for ever, so it is done here."""

    def one(message: bytes, context: grpc.ServicerContext) -> Any:
        if decode is None:
            return message
        try:
            return decode(message)
        except Exception as error:  # any error of a decoder for malformed bytes
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{len(message)} bytes are no message: {error}")

    def many(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        return messages if decode is None else (one(message, context) for message in messages)

    return many if streamed else one


def _not_the_owners(owner: Loopback, brought: str) -> tuple[grpc.StatusCode, str] | None:
    """Reason to refuse a call on loopback; None where it comes from a process of this server's user."""
    verdict = owner.check_text(brought)
    if verdict is Verdict.RIGHT:
        return None
    if verdict is Verdict.EARLIER:  # it was sent while this server started
        return grpc.StatusCode.UNAVAILABLE, "the call began before this server listened: call again"
    return grpc.StatusCode.UNAUTHENTICATED, (
        f"without credentials it serves processes of its own user alone (uid {os.geteuid()}), and the call carries no "
        "token of theirs: give all sides --credentials, or this server --insecure"
    )


def _refusing(code: grpc.StatusCode, why: str) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def refuse(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.abort(code, why)
        yield  # a stream's handler is a generator

    return refuse
