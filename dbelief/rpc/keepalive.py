"""Detection of dead connections, whose peer does not respond: its machine lost power, or a network link is cut.

TCP detects that after two hours, or never while nothing is sent; until then a server keeps the connection, its streams
and a thread for each. So both ends send HTTP/2 pings. The peer's process must reply, not only its kernel: a process
that is paused for longer also loses its connections, and opens new ones when it resumes.
"""

from __future__ import annotations

from typing import NamedTuple


class Keepalive(NamedTuple):
    """Keepalive settings of one end of a connection.

    Attributes
    ----------
    time_s
        Silence after which a ping is sent.
    timeout_s
        Timeout of the ping's reply, and by TCP_USER_TIMEOUT also of the acknowledgement of any other data; after it the
        connection is closed.
    """

    time_s: float = 15.0
    timeout_s: float = 20.0

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """Options for gRPC, the same at both ends."""
        time_ms, timeout_ms = round(1000 * self.time_s), round(1000 * self.timeout_s)
        return (
            ("grpc.keepalive_time_ms", time_ms),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            ("grpc.http2.ping_timeout_ms", timeout_ms),  # the default of one minute would expire first
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),  # no limit
            # Pings at shorter intervals are counted, and after two of them the server closes the connection.
            ("grpc.http2.min_ping_interval_without_data_ms", time_ms // 2),
            ("grpc.http2.max_ping_strikes", 2),
        )


KEEPALIVE = Keepalive()
