"""Sending bad messages: by gRPC, as somebody who belongs to the job, and as bytes to any port."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from dbelief.process.terminal.console import host_and_port
from dbelief.rpc.channel import open_channel
from dbelief.security import Credentials
from worker.comm.sockets import handshake

from .messages import Call

CALL_S = 10.0
CLEAN = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""How a server may refuse; UNKNOWN would be an error that nobody foresaw, UNAVAILABLE a server that fell."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Attacker:
    """Calls servers with one connection to each, as long as it lives.

    Attributes
    ----------
    outcomes
        How calls ended: by kind of message and status.
    """

    def __init__(self, servers: Mapping[str, Sequence[str]], credentials: Credentials | None) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.foul: list[tuple[Call, grpc.StatusCode, str]] = []
        self._next = 0
        self._channels = {
            service: [open_channel(address, role, credentials) for address in addresses]
            for service, role, addresses in (
                ("Coordinator", "coordinator", servers["coordinator"]),
                ("Parameters", "ps", servers["ps"]),
            )
        }

    def send(self, call: Call) -> None:
        """Make one call, and note how it ended."""
        channels = self._channels[call.method.split("/")[1].rpartition(".")[2]]
        self._next += 1
        channel = channels[self._next % len(channels)]
        made: Any = (channel.stream_stream if call.streamed else channel.unary_unary)(call.method)
        try:
            if call.streamed:
                for _ in made(iter(call.messages), timeout=CALL_S):
                    pass
            else:
                made(call.messages[0], timeout=CALL_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            self.outcomes[call.kind, code.name] += 1
            if code not in CLEAN:
                self.foul.append((call, code, str(error.details())))
        else:
            self.outcomes[call.kind, "OK"] += 1

    def close(self) -> None:
        """Hang up."""
        for channels in self._channels.values():
            for channel in channels:
                channel.close()


def strike(address: str, chance: random.Random) -> None:
    """Send bytes to a port as somebody who does not speak its language, or only its first words; then hang up."""
    noise = chance.randbytes(chance.choice((0, 1, 24, 500, 20_000)))
    said = chance.choice(
        (
            noise,
            _PREFACE + noise,
            _PREFACE + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)) + noise,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise,
            b"GET / HTTP/1.1\r\n" + noise,
            b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + noise,
            handshake.MAGIC + noise,
            handshake.HELLO.pack(
                handshake.MAGIC, noise[:16], noise[16:32], chance.getrandbits(62), chance.getrandbits(31), 1
            ),
        )
    )
    with contextlib.suppress(OSError), socket.create_connection(host_and_port(address), 5.0) as connection:
        connection.settimeout(0.2)
        connection.sendall(said)
        if chance.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
        if chance.random() < 0.1:
            connection.recv(1_000)
