"""Bytes over the TCP connections of this process, as the kernel counts them: what gRPC sends beside messages too."""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import NamedTuple

_INFO = 256
_RECEIVED, _SENT = 128, 200
"""Places of tcpi_bytes_received and tcpi_bytes_sent, both __u64, in `struct tcp_info` (linux/tcp.h, since 4.19)."""


class TcpBytes(NamedTuple):
    """Bytes that open connections have sent and received so far, without the headers of packets."""

    sent: int
    received: int


def tcp_bytes() -> TcpBytes:
    """Of all open connections of this process, with those of TLS encrypted, and what was sent twice counted twice.

    Raises
    ------
    OSError
        This kernel does not count them.
    """
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            own = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        if not stat.S_ISSOCK(os.fstat(own).st_mode):
            os.close(own)
            continue
        with socket.socket(fileno=own) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
                if len(info) < _SENT + 8:
                    raise OSError("this kernel does not count the bytes of a connection")
                sent += struct.unpack_from("Q", info, _SENT)[0]
                received += struct.unpack_from("Q", info, _RECEIVED)[0]
    return TcpBytes(sent, received)
