"""What every call passes before its handler: whose token it brings, what that role may call, how many it has open."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import grpc

from dbelief.errors import Rejected
from dbelief.rpc.token_channel import BEARER, KEY
from dbelief.security import Credentials, Loopback, Verdict
from dbelief.security.permissions import ALL, PERMISSIONS

PEER_CALLS = 256
"""Most calls that one connection may have open; a replica has a few streams to each shard."""

_CALLER: ContextVar[str] = ContextVar("caller", default="")
_Reads = Callable[[Any, grpc.ServicerContext], Any]


def caller() -> str:
    """Whose call is at hand, in a method that is no stream; "" where there are no credentials."""
    return _CALLER.get()


def must_be(*roles: str) -> None:
    """See that the call at hand is one of these roles'; where there are no credentials, everyone is everything.

    Raises
    ------
    Refused
        It is another's.
    """
    if caller() and caller() not in roles:
        raise Rejected(f"the caller's token is for {caller()}, and this is for {' or '.join(roles)}")


def must_be_in(run_id: int, named: int) -> None:
    """See that the call at hand is from the run that this process is in.

    Raises
    ------
    Refused
        It is from another, and whoever calls is to end.
    """
    if named != run_id:
        raise Rejected("the caller's run of the job is over: the job was begun anew or resumed since")


class AuthInterceptor(grpc.ServerInterceptor):
    """Stands before all methods of a server.

    Parameters
    ----------
    credentials
        Of this server; None: it has none.
    most_calls
        That one connection may have open.

    Attributes
    ----------
    owner
        Checks that calls come from processes of this server's user, where there are no credentials; None: everybody
        may call.
    """

    owner: Loopback | None = None

    def __init__(self, credentials: Credentials | None, most_calls: int = PEER_CALLS) -> None:
        self._credentials = credentials
        self._most_calls = most_calls
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def intercept_service(
        self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Put this before a method; who may not call it is told before a message is read."""
        handler = continuation(details)
        if handler is None:
            return None
        role, refusal = self._role(details)
        if refusal is not None:
            # As a stream, whatever the method is: for another call's message gRPC would wait, on a thread of ours.
            return grpc.stream_stream_rpc_method_handler(_refusing(*refusal))
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            if (method := getattr(handler, kind)) is not None:
                read = _reads(handler.request_deserializer, streamed=kind.startswith("stream"))
                guarded = (self._streams if kind.endswith("stream") else self._answers)(role, method, read)
                make = getattr(grpc, f"{kind}_rpc_method_handler")
                return make(guarded, None, handler.response_serializer)  # type: ignore[no-any-return]
        raise AssertionError(f"{details.method} is no method of gRPC")

    def _role(self, details: grpc.HandlerCallDetails) -> tuple[str, tuple[grpc.StatusCode, str] | None]:
        """Whose token a call brings, and why it is refused."""
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
            with self._admitted(role, context):
                before = _CALLER.set(role)
                try:
                    return method(read(request, context), context)
                finally:
                    _CALLER.reset(before)

        return guarded

    def _streams(self, role: str, method: Callable[[Any, Any], Any], read: _Reads) -> Callable[[Any, Any], Any]:
        def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._admitted(role, context):
                yield from method(read(request, context), context)

        return guarded

    @contextlib.contextmanager
    def _admitted(self, role: str, context: grpc.ServicerContext) -> Iterator[None]:
        """See that the certificate is the token's role's, and count the call as long as it lasts."""
        proven: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]  # as it really is
        shown = [name.decode(errors="replace") for name in proven.get("x509_common_name", ())]
        if role and shown != [role]:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"a token for {role} under a certificate for {' '.join(shown)}"
            )
        peer = context.peer()
        with self._lock:
            self._open[peer] += 1
            crowd = self._open[peer] > self._most_calls
        try:
            if crowd:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._most_calls} calls of one connection are open already"
                )
            yield
        finally:
            with self._lock:
                self._open[peer] -= 1
                if not self._open[peer]:
                    del self._open[peer]


def _reads(decode: Callable[[bytes], Any] | None, streamed: bool) -> _Reads:
    """What makes messages of bytes. Where gRPC itself fails at that it keeps the call for ever: it is not asked to."""

    def one(message: bytes, context: grpc.ServicerContext) -> Any:
        if decode is None:
            return message
        try:
            return decode(message)
        except Exception as error:  # whatever a decoder says of bytes that are nothing
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{len(message)} bytes are no message: {error}")

    def many(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        return messages if decode is None else (one(message, context) for message in messages)

    return many if streamed else one


def _not_the_owners(owner: Loopback, brought: str) -> tuple[grpc.StatusCode, str] | None:
    """Why a call on loopback is refused; None where it comes from a process of this server's user."""
    verdict = owner.check_text(brought)
    if verdict is Verdict.RIGHT:
        return None
    if verdict is Verdict.EARLIER:  # it was on its way while this server started
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
