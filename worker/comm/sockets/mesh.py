"""Connection setup of a group: every rank listens, and connects to all ranks before it.

The accepting rank answers when it is in the connecting rank's generation, or at once if it is in a later one. So both
ends of a link have confirmed each other before either uses it. A rank whose group is not completed closes all its
connections, which fails the links at their other ends.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Any

from dbelief.errors import Unavailable
from dbelief.process.clock import Clock, SystemClock
from dbelief.security import TOKEN_BYTES, Loopback, Verdict
from dbelief.security.same_user import same_user

from ..polling import poll
from .engine import SocketEngine
from .handshake import (
    ANSWER,
    HELLO,
    MAGIC,
    MESSAGES,
    NEWS,
    UNIX,
    Key,
    Link,
    at_once,
    digest,
    owner,
    run_digest,
    unix_name,
)
from .listener import Listener
from .tls import NonBlockingTlsSocket, TlsContexts, handshake

CALL_AGAIN_S = 0.05


class _Dialer:
    """Connection to a rank before this one; retried until it is answered."""

    def __init__(self, address: str, key: Key, clock: Clock, seal: TlsContexts | None) -> None:
        host, _, port = address.rpartition(":")
        self._far = host.strip("[]"), int(port)
        self._near = unix_name(address)
        self._generation = key[2]
        self._hello = [HELLO.pack(MAGIC, *key, kind) for kind in (MESSAGES, NEWS)]
        self._clock = clock
        self._seal = seal
        self._next_s = clock.now()
        self._place: Any = None
        self._open: list[socket.socket] = []
        self._greeted = 0
        self._mine: Loopback | None = None  # checks the answer, if it contains a token

    def advance(self) -> Link | None:
        """Continue as far as possible without blocking; return the link when it is answered.

        Raises
        ------
        Unavailable
            The answer names another generation.
        """
        try:
            if not self._open:
                if self._clock.now() < self._next_s:
                    return None
                self._dial()
            return self._handshake()
        except BlockingIOError:
            return None
        except (OSError, UnicodeError):  # including a host name that cannot be resolved
            self.close()
            return None

    def _dial(self) -> None:
        """Start to connect: by Unix socket or, if none listens or the system isolates the processes, by TCP."""
        self._next_s = self._clock.now() + CALL_AGAIN_S
        if UNIX:
            self._begin(socket.AF_UNIX, self._near)
            code = self._open[0].connect_ex(self._place)
            if code == errno.EAGAIN or (code == 0 and same_user(self._open[0])):  # EAGAIN: the backlog is full
                return
            self.close()
        family, *_, place = socket.getaddrinfo(*self._far, type=socket.SOCK_STREAM)[0]
        self._begin(family, place)

    def _begin(self, family: int, place: Any) -> None:
        self._place = place
        for _ in self._hello:
            self._open.append(socket.socket(family, socket.SOCK_STREAM))
            at_once(self._open[-1])

    def _handshake(self) -> Link | None:
        while self._greeted < len(self._hello):
            one = self._open[self._greeted]
            if not isinstance(one, NonBlockingTlsSocket):
                code = one.connect_ex(self._place)
                if code in (errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN):
                    return None
                if code not in (0, errno.EISCONN) or not same_user(one):
                    raise OSError(code, "not connected")
                if self._seal is not None and one.family != socket.AF_UNIX:
                    one = self._open[self._greeted] = self._seal.wrap_outgoing(one)
            handshake(one)
            theirs = self._owner(one, one.getpeername())
            self._mine = self._owner(one, one.getsockname())
            one.send(self._hello[self._greeted] + (theirs.token() if theirs is not None else b""))
            self._greeted += 1
        messages, news = self._open
        wanted = ANSWER.size + (TOKEN_BYTES if self._mine is not None else 0)
        answer = news.recv(wanted)  # a message this short arrives in one piece
        if len(answer) < wanted:
            raise ConnectionError("it hung up")
        if self._mine is not None and self._mine.check(answer[ANSWER.size :]) is not Verdict.RIGHT:
            raise ConnectionError("it is another user's process")
        (generation,) = ANSWER.unpack(answer[: ANSWER.size])
        if generation != self._generation:
            raise Unavailable(f"is in generation {generation}, not in {self._generation} any more")
        return messages, news

    def _owner(self, one: socket.socket, place: Any) -> Loopback | None:
        return owner(one, place) if self._seal is None else None

    def close(self) -> None:
        """Close the connections."""
        for one in self._open:
            one.close()
        self._open, self._greeted = [], 0


def connect_mesh(
    listener: Listener,
    job: str,
    generation: int,
    rank: int,
    addresses: Sequence[str],
    deadline_s: float,
    clock: Clock | None = None,
    seal: TlsContexts | None = None,
    run_id: int = 0,
) -> SocketEngine:
    """Form a group: connect this rank with all others of a generation of a job, which do the same.

    Cost: two connections and three small messages to each other rank.

    Parameters
    ----------
    generation
        Number of the group in this job; a later group has a higher number. A rank that connects with a lower one than
        this process has been in is answered with the current one.
    rank, addresses
        This rank, and the listening addresses ("host:port") of all ranks, in rank order; the same on all ranks.
    deadline_s
        Timeout for the complete setup.
    seal
        TLS contexts of TCP connections, the same as the listener's; None: plain.
    run_id
        Run of the job; connections from another run are rejected.

    Raises
    ------
    ValueError
        The rank is out of range, or an address has no port.
    Unavailable
        Not all ranks connected in time, or one is already in a later generation; names them.
    """
    clock = clock or SystemClock()
    if not 0 <= rank < len(addresses):
        raise ValueError(f"rank {rank} is none of {len(addresses)}")
    of_run = run_digest(job, run_id)
    keys = [(of_run, digest(address), generation, peer) for peer, address in enumerate(addresses)]
    calls = [_Dialer(address, keys[rank], clock, seal) for address in addresses[:rank]]
    links: dict[int, Link] = {}
    missing = [peer for peer in range(len(addresses)) if peer != rank]

    def link_to(peer: int) -> Link | None:
        try:
            return calls[peer].advance() if peer < rank else listener.claim(keys[peer])
        except Unavailable as error:
            raise Unavailable(f"{job}: rank {peer} at {addresses[peer]} {error}") from None

    def complete() -> bool:
        for peer in list(missing):
            if (link := link_to(peer)) is not None:
                links[peer] = link
                missing.remove(peer)
        return not missing

    listener.enter(keys[rank][0], generation)
    try:
        if not poll(clock, complete, deadline_s):
            named = ", ".join(f"rank {peer} at {addresses[peer]}" for peer in missing)
            raise Unavailable(f"{job}, generation {generation}: rank {rank} waited {deadline_s:g} s for {named}")
        return SocketEngine(rank, addresses, links, clock)
    except BaseException:
        for call in calls:
            call.close()
        for link in links.values():
            for one in link:
                one.close()
        raise
