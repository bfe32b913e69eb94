"""How ranks find each other: every rank listens, and calls all ranks before it.

A call is two connections, each of which begins with a hello: the job, its generation, who calls, and what the
connection is for. The rank that was called answers on the second one with the generation it is in, as soon as it is
in the caller's; at once, where that is a later one. So both ends of a link know of each other before either believes in
it. A rank whose group did not come together closes all it has, which ends those that believed in it.

Ranks of one host need no TCP. Besides its port a listener has a Unix socket, whose name is made of the address that the
others know; a caller tries that first. The names are the kernel's, one set for each network namespace: who finds the
name is on the callee's host, so that nothing has to be configured, and nothing is left behind by a process that dies.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import select
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from typing import Any

from dbelief.clock import Clock, SystemClock
from dbelief.errors import Unreachable

from ..polling import poll
from .engine import SocketEngine

MAGIC = b"dbelief comm 1\0\0"
HELLO = struct.Struct("<16s16s16sqIB")
ANSWER = struct.Struct("<q")
MESSAGES, NEWS = 0, 1
CALL_AGAIN_S = 0.05
BACKLOG = 128
UNIX = sys.platform == "linux"
"""Whether sockets may have names that are no files."""
UNIX_BUFFER_BYTES = 1 << 20
"""What a rank may have sent to another of its host that is not yet read; the kernel gives as much as it allows."""

_Key = tuple[bytes, bytes, int, int]
"""Of a call: the job, the address of who calls (digests of both), the generation, and the caller's rank."""
_Link = tuple[socket.socket, socket.socket]


class Listener:
    """Where other ranks reach this process, as long as it lives; takes their calls in a thread.

    Parameters
    ----------
    known_as
        "host:port" that the others are told, where that is another; port 0: the one that is listened on.

    Attributes
    ----------
    address
        "host:port" that the others are told.

    Raises
    ------
    OSError
        Nobody can listen there, or another process is known by that address.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, known_as: str = "") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        far = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
        told, _, its_port = (known_as or f"{host}:0").rpartition(":")
        told = f"[{told.strip('[]')}]" if ":" in told else told
        self.address = f"{told}:{int(its_port) or far.getsockname()[1]}"
        try:
            self._doors = {one.fileno(): one for one in (far, *_near(self.address))}
        except OSError:
            far.close()
            raise
        self._calls: dict[_Key, dict[int, socket.socket]] = {}
        self._heard: dict[int, tuple[socket.socket, bytes]] = {}
        self._now: tuple[bytes, int] | None = None
        self._lock = threading.Lock()
        self._stopped, self._stop = socket.socketpair()
        self._poller = select.poll()
        for one in (*self._doors.values(), self._stopped):
            one.setblocking(False)
            self._poller.register(one, select.POLLIN)
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def enter(self, job: bytes, generation: int) -> None:
        """Be in a generation of a job from now on: earlier calls are turned away."""
        with self._lock:
            self._now = job, generation
            for key in [key for key in self._calls if self._too_late(key)]:
                for kind, call in self._calls.pop(key).items():
                    self._turn_away(key[0], kind, call)

    def claim(self, key: _Key) -> _Link | None:
        """Give the link to a rank that called, once, and answer it; None where it has not.

        Raises
        ------
        Unreachable
            It called from a later generation: the one it is waited for in is over.
        """
        job, caller, generation, _ = key
        with self._lock:
            latest = max((other[2] for other in self._calls if other[:2] == (job, caller)), default=generation)
            if latest > generation:
                raise Unreachable(f"is in generation {latest}, not in {generation} any more")
            calls = self._calls.get(key, {})
            if len(calls) < 2:
                return None
            del self._calls[key]
        with contextlib.suppress(OSError):  # it is gone again: its news will tell
            calls[NEWS].send(ANSWER.pack(generation))
        return calls[MESSAGES], calls[NEWS]

    def close(self) -> None:
        """Listen no more; links that were claimed stay."""
        self._stop.close()
        self._thread.join()
        with self._lock:
            waiting = [call for calls in self._calls.values() for call in calls.values()]
            for one in (*self._doors.values(), self._stopped, *waiting, *(call for call, _ in self._heard.values())):
                one.close()
            self._calls.clear()

    def _listen(self) -> None:
        while True:
            for file, _ in self._poller.poll():
                if file == self._stopped.fileno():
                    return
                if file in self._heard:
                    self._hear(file)
                else:
                    self._accept(self._doors[file])

    def _accept(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it hung up, or there are too many open files
            call, _ = door.accept()
            _at_once(call)
            self._heard[call.fileno()] = call, b""
            self._poller.register(call, select.POLLIN)

    def _hear(self, file: int) -> None:
        """Take in more of a hello; what does not say hello is hung up on."""
        call, before = self._heard[file]
        try:
            more = call.recv(HELLO.size - len(before))
        except OSError:
            more = b""
        hello = before + more
        self._heard[file] = call, hello
        friendly = hello[: len(MAGIC)] == MAGIC[: len(hello)]
        if more and friendly and len(hello) < HELLO.size:
            return
        self._poller.unregister(file)
        del self._heard[file]
        if not friendly or len(hello) < HELLO.size:
            call.close()
            return
        _, *key, kind = HELLO.unpack(hello)
        self._keep(tuple(key), kind, call)

    def _keep(self, key: _Key, kind: int, call: socket.socket) -> None:
        with self._lock:
            if self._too_late(key):
                return self._turn_away(key[0], kind, call)
            calls = self._calls.setdefault(key, {})
            if kind in calls:  # it called anew
                calls[kind].close()
            calls[kind] = call

    def _too_late(self, key: _Key) -> bool:
        """Whether a call is for another job or an earlier generation."""
        return self._now is not None and (key[0] != self._now[0] or key[2] < self._now[1])

    def _turn_away(self, job: bytes, kind: int, call: socket.socket) -> None:
        assert self._now is not None
        if kind == NEWS and job == self._now[0]:
            with contextlib.suppress(OSError):
                call.send(ANSWER.pack(self._now[1]))
        call.close()


def _near(address: str) -> list[socket.socket]:
    """A listening Unix socket of this name; none where the system has or allows no such names.

    Raises
    ------
    OSError
        Another process has it: callers would find that one.
    """
    if not UNIX:
        return []
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind(_unix_name(address))
        door.listen(BACKLOG)
    except OSError as error:
        door.close()
        if error.errno == errno.EADDRINUSE:
            raise
        return []
    return [door]


def _unix_name(address: str) -> bytes:
    return b"\0" + MAGIC.rstrip(b"\0") + b" " + _digest(address)  # names end at 107 bytes, hosts' later


def _at_once(one: socket.socket) -> None:
    """Neither wait for a connection, nor let what is sent wait for more."""
    one.setblocking(False)
    if one.family == socket.AF_UNIX:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
    else:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class _Call:
    """A call to a rank before this one; made again and again until it is answered."""

    def __init__(self, address: str, key: _Key, clock: Clock) -> None:
        host, _, port = address.rpartition(":")
        self._unix_name = _unix_name(address)
        self._host, self._port = host.strip("[]"), int(port)
        self._generation = key[2]
        self._hello = [HELLO.pack(MAGIC, *key, kind) for kind in (MESSAGES, NEWS)]
        self._clock = clock
        self._next_s = clock.now()
        self._place: Any = None
        self._open: list[socket.socket] = []
        self._told = 0

    def advance(self) -> _Link | None:
        """Go on as far as can be without waiting; gives the link when it is answered.

        Raises
        ------
        Unreachable
            The answer names another generation.
        """
        try:
            if not self._open:
                if self._clock.now() < self._next_s:
                    return None
                self._dial()
            return self._go_on()
        except BlockingIOError:
            return None
        except OSError:
            self.close()
            return None

    def _dial(self) -> None:
        self._next_s = self._clock.now() + CALL_AGAIN_S
        self._place = self._unix_name
        if UNIX and self._try(socket.AF_UNIX):
            return
        self.close()
        family, *_, self._place = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
        self._try(family)

    def _try(self, family: int) -> bool:
        """Begin to call there; gives whether someone is, or may be.

        Only a Unix socket answers at once: it is connected, or too many others call (EAGAIN). Else nobody is there, or
        the system keeps the two apart, and there is TCP.
        """
        for _ in self._hello:
            self._open.append(socket.socket(family, socket.SOCK_STREAM))
            _at_once(self._open[-1])
        return self._open[0].connect_ex(self._place) in (0, errno.EAGAIN)

    def _go_on(self) -> _Link | None:
        while self._told < len(self._hello):
            code = self._open[self._told].connect_ex(self._place)
            if code in (errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN):
                return None
            if code not in (0, errno.EISCONN):
                raise OSError(code, "not connected")
            self._open[self._told].send(self._hello[self._told])
            self._told += 1
        messages, news = self._open
        answer = news.recv(ANSWER.size)  # so few bytes come as one
        if len(answer) < ANSWER.size:
            raise ConnectionError("it hung up")
        (generation,) = ANSWER.unpack(answer)
        if generation != self._generation:
            raise Unreachable(f"is in generation {generation}, not in {self._generation} any more")
        return messages, news

    def close(self) -> None:
        """Hang up."""
        for one in self._open:
            one.close()
        self._open, self._told = [], 0


def connect(
    listener: Listener,
    job: str,
    generation: int,
    rank: int,
    addresses: Sequence[str],
    deadline_s: float,
    clock: Clock | None = None,
) -> SocketEngine:
    """Form a group: link this rank with all others of a generation of a job, who do the same.

    Cost: two connections and three small messages to each other rank.

    Parameters
    ----------
    generation
        Which group of this job it is; a later one has a higher number. Whoever calls with a lower one than this process
        has been in is told so.
    rank, addresses
        This rank, and where all ranks listen ("host:port"), in rank order; the same on all ranks.
    deadline_s
        How long all of that may take.

    Raises
    ------
    ValueError
        The rank is none of them, or an address has no port.
    Unreachable
        Not all came in time, or one is in a later generation by now; names them.
    """
    clock = clock or SystemClock()
    if not 0 <= rank < len(addresses):
        raise ValueError(f"rank {rank} is none of {len(addresses)}")
    keys = [(_digest(job), _digest(address), generation, peer) for peer, address in enumerate(addresses)]
    calls = [_Call(address, keys[rank], clock) for address in addresses[:rank]]
    links: dict[int, _Link] = {}
    missing = [peer for peer in range(len(addresses)) if peer != rank]

    def link_to(peer: int) -> _Link | None:
        try:
            return calls[peer].advance() if peer < rank else listener.claim(keys[peer])
        except Unreachable as error:
            raise Unreachable(f"{job}: rank {peer} at {addresses[peer]} {error}") from None

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
            raise Unreachable(f"{job}, generation {generation}: rank {rank} waited {deadline_s:g} s for {named}")
        return SocketEngine(rank, addresses, links, clock)
    except BaseException:
        for call in calls:
            call.close()
        for link in links.values():
            for one in link:
                one.close()
        raise
