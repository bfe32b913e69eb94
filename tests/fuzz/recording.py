"""What a client in this process sends, kept as it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import grpc

from tests.fuzz.messages import STREAMED


class Recorder(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Keeps the messages of every call, by its method.

    Attributes
    ----------
    calls
        By the full name of a method: of each call its messages. A stream that is kept open is one call for each
        message that begins something, so that it can be repeated alone.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[list[bytes]]] = {}
        self._lock = threading.Lock()

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Keep a call's message."""
        self._keep(details.method, request.SerializeToString())
        return continuation(details, request)

    def intercept_stream_stream(self, continuation: Any, details: Any, request_iterator: Any) -> Any:
        """Keep a stream's messages as they leave."""

        def kept() -> Iterator[bytes]:
            for message in request_iterator:
                self._keep(details.method, bytes(message))
                yield message

        return continuation(details, kept())

    def _keep(self, method: Any, message: bytes) -> None:
        name = method.decode() if isinstance(method, bytes) else str(method)
        with self._lock:
            self.calls.setdefault(name, []).append([message])

    def whole(self) -> dict[str, list[list[bytes]]]:
        """All calls by now; of streams also all their messages together."""
        with self._lock:
            found = {name: list(calls) for name, calls in self.calls.items()}
        for name, calls in found.items():
            if name.rpartition("/")[2] in STREAMED:
                calls.append([message for call in calls for message in call][:8])
        return found


@contextmanager
def recording() -> Iterator[Recorder]:
    """Have every channel that is made in the block keep what goes through it."""
    recorder = Recorder()
    make = {name: getattr(grpc, name) for name in ("insecure_channel", "secure_channel")}

    def opened(name: str) -> Any:
        return lambda *arguments, **options: grpc.intercept_channel(make[name](*arguments, **options), recorder)

    with patch.multiple(grpc, **{name: opened(name) for name in make}):
        yield recorder
