"""Token of each call of a channel: gRPC itself adds one only under TLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

KEY = "authorization"
BEARER = "Bearer "


def token_channel(channel: grpc.Channel, token: Callable[[], str]) -> grpc.Channel:
    """A channel that adds a token to the metadata of each call.

    Parameters
    ----------
    token
        Called once for each call; a stream is one call.
    """
    return grpc.intercept_channel(channel, _Bearing(token))


class _Bearing(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Interceptor of the calls of any kind."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def _intercept(self, begin: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        return begin(details._replace(metadata=(*(details.metadata or ()), (KEY, BEARER + self._token()))), request)

    intercept_unary_unary: Any = _intercept
    intercept_unary_stream: Any = _intercept
    intercept_stream_unary: Any = _intercept
    intercept_stream_stream: Any = _intercept
