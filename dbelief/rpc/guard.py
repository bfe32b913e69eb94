"""What every call passes before its handler: whose token it brings, what that role may call, how many it has open."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import grpc

from dbelief.errors import Refused
from dbelief.security import Credentials
from dbelief.security.rights import ALL, RIGHTS

PEER_CALLS = 256
"""Most calls that one connection may have open; a replica has a few streams to each shard."""

_CALLER: ContextVar[str] = ContextVar("caller", default="")
_BEARER = "Bearer "


def must_be(*roles: str) -> None:
    """See that the call at hand is one of these roles'; where there are no credentials, everyone is everything.

    Raises
    ------
    Refused
        It is another's.
    """
    caller = _CALLER.get()
    if caller and caller not in roles:
        raise Refused(f"the caller's token is for {caller}, and this is for {' or '.join(roles)}")


class Guard(grpc.ServerInterceptor):
    """Stands before all methods of a server.

    Parameters
    ----------
    credentials
        Of this server; None: nobody needs a token.
    most_calls
        That one connection may have open.
    """

    def __init__(self, credentials: Credentials | None, most_calls: int = PEER_CALLS) -> None:
        self._credentials = credentials
        self._most_calls = most_calls
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def intercept_service(
        self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Put this before a method."""
        handler = continuation(details)
        if handler is None:
            return None
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            if (method := getattr(handler, kind)) is not None:
                make = getattr(grpc, f"{kind}_rpc_method_handler")
                guarded = (self._streams if kind.endswith("stream") else self._answers)(details.method, method)
                return make(guarded, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]
        raise AssertionError(f"{details.method} is no method of gRPC")

    def _answers(self, name: str, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            with self._admitted(name, context) as role:
                before = _CALLER.set(role)
                try:
                    return method(request, context)
                finally:
                    _CALLER.reset(before)

        return guarded

    def _streams(self, name: str, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._admitted(name, context):
                yield from method(request, context)

        return guarded

    @contextlib.contextmanager
    def _admitted(self, name: str, context: grpc.ServicerContext) -> Iterator[str]:
        """Count the call as long as it lasts; gives the caller's role."""
        peer = context.peer()
        role = self._role(name, context)
        with self._lock:
            self._open[peer] += 1
            crowd = self._open[peer] > self._most_calls
        try:
            if crowd:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._most_calls} calls of one connection are open already"
                )
            yield role
        finally:
            with self._lock:
                self._open[peer] -= 1
                if not self._open[peer]:
                    del self._open[peer]

    def _role(self, name: str, context: grpc.ServicerContext) -> str:
        """Whose call it is; ends one that may not be."""
        if self._credentials is None:
            return ""
        brought = dict(context.invocation_metadata()).get("authorization", "")
        role = self._credentials.role_of(str(brought).removeprefix(_BEARER)) if brought else None
        if role is None:
            trouble = "its token is not this job's" if brought else "it brings no token"
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{trouble}: `dbelief certs` makes one for each role")
            raise AssertionError("abort returns nowhere")
        allowed = RIGHTS.get(name, ALL)
        if role not in allowed:
            method, others = name.rpartition("/")[2], ", ".join(sorted(allowed))
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method} is for {others}, and the token for {role}")
        return role
