"""Factory of all channels, and the table from errors to status codes and back."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import grpc

from dbelief.errors import (
    DbeliefError,
    Deposed,
    Moved,
    Rejected,
    ResourceExhausted,
    SnapshotError,
    Unavailable,
    UserError,
)
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import format_error
from dbelief.security import DOMAIN, Credentials, Loopback, current, loopback_address

from . import proxy
from .diagnosis import why_not
from .keepalive import KEEPALIVE, Keepalive
from .token_channel import token_channel
from .transport import transport

log = logging.getLogger(__name__)

T = TypeVar("T")

logging.getLogger("grpc").addHandler(logging.NullHandler())  # no log of malformed messages: the caller gets the error

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", -1),  # the receiver limits the length
    # One segment, one HTTP/2 frame.
    ("grpc.http2.max_frame_size", 1 << 20),
    # Each side below sets the buffer of a sender before its reader: gRPC would let it grow to the bandwidth-delay
    # product, which cost a shard under pushes 50 to 200 MiB beyond its vectors.
    ("grpc.http2.bdp_probe", 0),
    # A restarted peer is reconnected soon, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A peer that restarts under another address, as a container does, is resolved again as soon, not after gRPC's half
    # a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Our callers retry. gRPC would resend a stream that a server had not seen when it ended; where the server cannot be
    # reached any more, a read of the stream may then never return, and cancelling has no effect.
    ("grpc.enable_retries", 0),
    # Each client has its own connection, so that its backlog delays no other client.
    ("grpc.use_local_subchannel_pool", 1),
)

LOOKAHEAD = "grpc.http2.lookahead_bytes"
ANY_ANSWER = ("grpc.max_receive_message_length", -1)
"""A client trusts its servers: a job's status may hold long layouts."""
CLIENT_AHEAD, SERVER_AHEAD = (LOOKAHEAD, 16 << 20), (LOOKAHEAD, 4 << 20)
"""Bytes buffered per stream before the reader: of a pull at a client, and of a push at a shard. More is faster, and
costs memory per stream. A shard has many streams, a client few."""

_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (Moved, grpc.StatusCode.ABORTED),
    # A member whose heartbeat a replaced coordinator refused for good would end, and with it perhaps the only copy.
    (Deposed, grpc.StatusCode.UNAVAILABLE),
    (ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Rejected, grpc.StatusCode.FAILED_PRECONDITION),
    (SnapshotError, grpc.StatusCode.DATA_LOSS),
    (UserError, grpc.StatusCode.INVALID_ARGUMENT),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
    # Among the rest: a timeout inside the server. That is a reply, and not to be retried.
    (DbeliefError, grpc.StatusCode.INTERNAL),
)
_KINDS: dict[grpc.StatusCode, type[DbeliefError]] = {
    grpc.StatusCode.ABORTED: Moved,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.DATA_LOSS: SnapshotError,
}
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_NO_THREAD = "Concurrent RPC limit exceeded"
"""gRPC's reason, under RESOURCE_EXHAUSTED, where all handler threads of a server are busy: one may be free soon."""


QUIET_S = 5.0
"""Seconds of waiting for a peer before a warning: processes that start together are not ready at once."""


def open_channel(
    address: str, role: str = "server", credentials: Credentials | None = None, keepalive: Keepalive = KEEPALIVE
) -> grpc.Channel:
    """Open a channel to `host:port`. Every channel of the system is made here.

    Without credentials, calls to a loopback address prove that they come from a process of this user.

    Parameters
    ----------
    role
        Role in the peer's certificate, where there are credentials: "coordinator" or "ps"; "server": either.
    credentials
        None: this process's.

    Raises
    ------
    UserError
        The address is invalid, or there is no folder for this user's secret.
    """
    near = loopback_address(address)
    # gRPC would take the environment's proxy, to loopback too.
    through_proxy = ("grpc.enable_http_proxy", int(proxy.enabled() and near is None))
    options = (*OPTIONS, *keepalive.options, ANY_ANSWER, CLIENT_AHEAD, through_proxy)
    mine = credentials or current()
    if mine is None:
        plain = transport.channel(near or address, options, None)
        return token_channel(plain, Loopback(near).text) if near else plain
    shown = grpc.ssl_channel_credentials(mine.authority, mine.key, mine.certificate)
    if mine.token:
        shown = grpc.composite_channel_credentials(shown, grpc.access_token_call_credentials(mine.token))
    # By role, on whatever host: containers have no stable names.
    return transport.channel(address, (*options, ("grpc.ssl_target_name_override", f"{role}.{DOMAIN}")), shown)


def wait_ready(channel: grpc.Channel, timeout_s: float, what: str, address: str = "") -> None:
    """Wait until the peer is reachable; after `QUIET_S` a warning gives the reason why it is not yet.

    Parameters
    ----------
    address
        Of the peer, to diagnose why it is not reachable.

    Raises
    ------
    Unavailable
        After `timeout_s`; names `what`.
    """
    ready = runtime.event()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            ready.set()

    channel.subscribe(changed, try_to_connect=True)
    try:
        if ready.wait(min(timeout_s, QUIET_S)):
            return
        why = why_not(address) if address else ""
        if timeout_s > QUIET_S:
            log.warning(f"{what} does not answer yet, waiting for up to {timeout_s:g} s{why and ': '}{why}")
            if ready.wait(timeout_s - QUIET_S):
                return
            why = why_not(address) if address else ""
        raise Unavailable(f"{what} did not answer within {timeout_s:g} s{why and ': '}{why}")
    finally:
        channel.unsubscribe(changed)


@contextmanager
def connecting(channel: grpc.Channel) -> Iterator[None]:
    """Within the `with` block the channel's connection is made.

    Between calls that fail at once gRPC reads no socket of this process, so that a connection whose handshake takes
    some round trips is never finished: as of a worker that was there before its coordinator.
    """
    channel.subscribe(_ignored, try_to_connect=True)
    try:
        yield
    finally:
        channel.unsubscribe(_ignored)


def _ignored(state: grpc.ChannelConnectivity) -> None:
    del state


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Convert gRPC's errors to ours: Unavailable where the peer did not reply, Rejected or its like where it refused.

    A server without a free handler thread is Unavailable too.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise named(error, what) from error


def named(error: grpc.RpcError, what: str) -> DbeliefError:
    """An error of gRPC's as one of ours: see `named_errors`."""
    code, details = error.code(), error.details()
    crowded = code is grpc.StatusCode.RESOURCE_EXHAUSTED and str(details).startswith(_NO_THREAD)
    kind = Unavailable if code in _AWAY or crowded else _KINDS.get(code, Rejected)
    return kind(f"{what}: {details or code.name.lower()}")


def _abort(servicer: Any, context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the error's status.

    A servicer may have `where`, a prefix of every reason, and `refused(kind)`, which is called for each.
    """
    for kind, code in _STATUS:
        if isinstance(error, kind):
            if hasattr(servicer, "refused"):
                servicer.refused(type(error).__name__)
            context.abort(code, f"{getattr(servicer, 'where', '')}{error}")
    reason = f"{getattr(servicer, 'where', '')}{format_error(error)}"  # an internal fault; the message has its location
    log.warning(f"a call failed: {reason}")
    context.abort(grpc.StatusCode.UNKNOWN, reason)
    raise error


def answers(
    method: Callable[[Any, Any, grpc.ServicerContext], T],
) -> Callable[[Any, Any, grpc.ServicerContext], T]:
    """Decorate a unary handler: our errors become their status and reason, others UNKNOWN, with a log line here."""

    @functools.wraps(method)
    def handler(self: Any, request: Any, context: grpc.ServicerContext) -> T:
        try:
            return method(self, request, context)
        except Exception as error:
            _abort(self, context, error)

    return handler


def streams(
    method: Callable[[Any, Any, grpc.ServicerContext], Iterator[T]],
) -> Callable[[Any, Any, grpc.ServicerContext], Iterator[T]]:
    """Decorate a streaming handler as `answers` does a unary one."""

    @functools.wraps(method)
    def handler(self: Any, request: Any, context: grpc.ServicerContext) -> Iterator[T]:
        try:
            yield from method(self, request, context)
        except grpc.RpcError:  # the caller has disconnected
            raise
        except Exception as error:
            _abort(self, context, error)

    return handler
