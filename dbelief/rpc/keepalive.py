"""When a connection counts as dead because its other end does not answer: a machine lost power, or a link is cut.

TCP finds that out after two hours, or never while nothing is sent; until then a server keeps the connection, its
streams and a thread for each. So both ends send HTTP/2 pings. These need the process of the peer, not only its kernel:
a process that is paused for longer loses its connections too, and opens new ones when it runs again.
"""

from __future__ import annotations

from typing import NamedTuple


class Keepalive(NamedTuple):
    """How one end of a connection looks whether the other is there.

    Attributes
    ----------
    time_s
        Silence after which a ping is sent.
    timeout_s
        How long its answer may take, and by TCP_USER_TIMEOUT also the acknowledgement of anything else that was sent;
        then the connection is closed.
    """

    time_s: float = 15.0
    timeout_s: float = 20.0

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """For gRPC, the same at both ends."""
        time_ms, timeout_ms = round(1000 * self.time_s), round(1000 * self.timeout_s)
        return (
            ("grpc.keepalive_time_ms", time_ms),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            ("grpc.http2.ping_timeout_ms", timeout_ms),  # else a minute, which comes first
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),  # no end to them
            # Pings that come faster than this are counted, and after two of them the server ends the connection.
            ("grpc.http2.min_ping_interval_without_data_ms", time_ms // 2),
            ("grpc.http2.max_ping_strikes", 2),
        )


KEEPALIVE = Keepalive()
