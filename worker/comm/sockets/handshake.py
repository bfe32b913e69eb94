"""What a call begins with, and the sockets that it goes over.

A call is two connections, each of which begins with a hello: the run of the job, its generation, who calls, and what
the connection is for. The rank that was called answers on the second one with the generation it is in.

Ranks of one host need no TCP. Besides its port a listener has a Unix socket, whose name is made of the address that the
others know; a caller tries that first. The names are the kernel's, one set for each network namespace: who finds the
name is on the callee's host, so that nothing has to be configured, and nothing is left behind by a process that dies.
They are open to every user of the host, so both ends see that the other is their own user's. TCP on loopback is open to
all of them too: without TLS, hello and answer each end with a token of the user's there (`dbelief.security.loopback`).
"""

from __future__ import annotations

import hashlib
import socket
import struct
import sys

from dbelief.security import Loopback, loopback_address

MAGIC = b"dbelief comm 1\0\0"
HELLO = struct.Struct("<16s16s16sqIB")
ANSWER = struct.Struct("<q")
MESSAGES, NEWS = 0, 1
UNIX = sys.platform == "linux"
"""Whether sockets may have names that are no files."""
UNIX_BUFFER_BYTES = 1 << 20
"""What a rank may have sent to another of its host that is not yet read; the kernel gives as much as it allows."""

Key = tuple[bytes, bytes, int, int]
"""Of a call: the run of the job, the address of who calls (digests of both), the generation, and the caller's rank."""
Link = tuple[socket.socket, socket.socket]
"""Between two ranks: the connection for messages, and the one for news."""


def digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def run_digest(job: str, run_id: int) -> bytes:
    """16 bytes that stand for a run of a job."""
    return digest(f"{job} {run_id}")


def unix_name(address: str) -> bytes:
    """Of the Unix socket of a listener that is known as "host:port"."""
    return b"\0" + MAGIC.rstrip(b"\0") + b" " + digest(address)  # names end at 107 bytes, hosts' later


def at_once(one: socket.socket) -> None:
    """Neither wait for a connection, nor let what is sent wait for more."""
    one.setblocking(False)
    if one.family == socket.AF_UNIX:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
    else:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def owner(one: socket.socket, place: tuple[object, ...], since: int | None = None) -> Loopback | None:
    """What makes and checks the tokens that are sent to one end of a connection without TLS; None where there are none.

    Parameters
    ----------
    place
        Address of that end: `getsockname` or `getpeername`.
    since
        As `Loopback` has it.
    """
    if one.family == socket.AF_UNIX:
        return None
    host, port = place[:2]
    near = loopback_address(f"[{host}]:{port}" if one.family == socket.AF_INET6 else f"{host}:{port}")
    return Loopback(near, since) if near is not None else None
