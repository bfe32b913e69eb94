"""Channel that adds a token to each call: gRPC itself adds one only under TLS."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

KEY = "authorization"
BEARER = "Bearer "


class TokenChannel(grpc.Channel):
    """Wrapper of a channel that adds a token to the metadata of each call.

    Parameters
    ----------
    token
        Called once for each call; a stream is one call.
    """

    def __init__(self, channel: grpc.Channel, token: Callable[[], str]) -> None:
        self._channel = channel
        self._token = token

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """See `grpc.Channel`."""
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """See `grpc.Channel`."""
        self._channel.unsubscribe(callback)

    def unary_unary(self, *method: Any, **more: Any) -> Any:
        """See `grpc.Channel`."""
        return _Bearing(self._channel.unary_unary(*method, **more), self._token)

    def unary_stream(self, *method: Any, **more: Any) -> Any:
        """See `grpc.Channel`."""
        return _Bearing(self._channel.unary_stream(*method, **more), self._token)

    def stream_unary(self, *method: Any, **more: Any) -> Any:
        """See `grpc.Channel`."""
        return _Bearing(self._channel.stream_unary(*method, **more), self._token)

    def stream_stream(self, *method: Any, **more: Any) -> Any:
        """See `grpc.Channel`."""
        return _Bearing(self._channel.stream_stream(*method, **more), self._token)

    def close(self) -> None:
        """See `grpc.Channel`."""
        self._channel.close()

    def __enter__(self) -> Self:
        """Return the channel itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the channel."""
        self.close()


class _Bearing:
    """One method of a channel, of any kind."""

    def __init__(self, method: Any, token: Callable[[], str]) -> None:
        self._method = method
        self._token = token

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = None, **more: Any) -> Any:
        return self._method(request, timeout, self._with_token(metadata), **more)

    def with_call(self, request: Any, timeout: float | None = None, metadata: Any = None, **more: Any) -> Any:
        return self._method.with_call(request, timeout, self._with_token(metadata), **more)

    def future(self, request: Any, timeout: float | None = None, metadata: Any = None, **more: Any) -> Any:
        return self._method.future(request, timeout, self._with_token(metadata), **more)

    def _with_token(self, metadata: Any) -> tuple[tuple[str, str], ...]:
        return (*(metadata or ()), (KEY, BEARER + self._token()))
