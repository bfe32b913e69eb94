"""Hello and answer of a link between two ranks, and the sockets it uses.

A link consists of two connections. Each of them begins with a hello: the run of the job, the address of the connecting
rank, its generation and rank, and the purpose of the connection. The accepting rank answers on the second one with its
current generation.

Ranks of one host need no TCP. Besides its port a listener has a Unix socket, whose name is derived from the advertised
address; a connecting rank tries it first. The names are the kernel's, one set for each network namespace. A process
that finds the name is on the listener's host: nothing has to be configured, and a process that fails leaves nothing
behind. The names are open to every user of the host, so both ends check that the other one runs as the same user. TCP
on loopback is open to all users too: without TLS, hello and answer each end with a token of the user there
(`dbelief.security.loopback`).
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
"""Bytes that a rank may have sent to another one of its host before they are read; the kernel may limit it further."""

Key = tuple[bytes, bytes, int, int]
"""Key of a link: the run of the job and the address of the connecting rank (digests), the generation, and its rank."""
Link = tuple[socket.socket, socket.socket]
"""Connections between two ranks: one for messages, and one for notices."""


def digest(text: str) -> bytes:
    """16-byte digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def run_digest(job: str, run_id: int) -> bytes:
    """16-byte digest of a run of a job."""
    return digest(f"{job} {run_id}")


def unix_name(address: str) -> bytes:
    """Name of the Unix socket of a listener that is advertised as "host:port"."""
    return b"\0" + MAGIC.rstrip(b"\0") + b" " + digest(address)  # the limit is 107 bytes, host names may be longer


def at_once(one: socket.socket) -> None:
    """Make a socket non-blocking, and send without delay."""
    one.setblocking(False)
    if one.family == socket.AF_UNIX:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
    else:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def owner(one: socket.socket, place: tuple[object, ...], since: int | None = None) -> Loopback | None:
    """Token maker and checker for one end of a connection without TLS; None where tokens are not used.

    Parameters
    ----------
    place
        Address of that end: `getsockname` or `getpeername`.
    since
        See `Loopback`.
    """
    if one.family == socket.AF_UNIX:
        return None
    host, port = place[:2]
    near = loopback_address(f"[{host}]:{port}" if one.family == socket.AF_INET6 else f"{host}:{port}")
    return Loopback(near, since) if near is not None else None
