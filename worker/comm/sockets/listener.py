"""Listener for the connections of other ranks: a TCP port and, for ranks of the same host, a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import select
import socket

from dbelief.errors import Unavailable, UserError
from dbelief.process.runtime import runtime
from dbelief.security import TOKEN_BYTES, Verdict
from dbelief.security.same_user import same_user

from .handshake import ANSWER, HELLO, MAGIC, MESSAGES, NEWS, UNIX, Key, Link, at_once, owner, unix_name
from .tls import TlsContexts, handshake

BACKLOG = 128
FULL_S = 0.05
"""Seconds to leave connections pending when no more files can be opened."""
STRANGERS = 128
"""Limit of connections that have not sent a hello yet; beyond it the oldest is closed."""
CALLERS = 256
"""Limit of connected ranks that are not claimed yet; beyond it the oldest is closed."""


class Listener:
    """Listening sockets of this process for its lifetime; a thread accepts the connections.

    Parameters
    ----------
    known_as
        Advertised "host:port", if different; port 0: the port that is listened on.
    seal
        TLS contexts of TCP connections; None: plain.

    Attributes
    ----------
    address
        Advertised "host:port".

    Raises
    ------
    OSError
        The address cannot be listened on, or another process has the same advertised address.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, known_as: str = "", seal: TlsContexts | None = None
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        far = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
        advertised, _, its_port = (known_as or f"{host}:0").rpartition(":")
        advertised = f"[{advertised.strip('[]')}]" if ":" in advertised else advertised
        self.address = f"{advertised}:{int(its_port) or far.getsockname()[1]}"
        try:
            self._doors = {one.fileno(): one for one in (far, *_unix_listener(self.address))}
        except OSError:
            far.close()
            raise
        self._seal = seal
        self._since = runtime.monotonic_ns()
        if seal is None:
            owner(far, far.getsockname())  # read this user's secret now, or fail
        self._calls: dict[Key, dict[int, socket.socket]] = {}
        self._heard: dict[int, tuple[socket.socket, bytes]] = {}
        self._now: tuple[bytes, int] | None = None
        self._lock = runtime.lock()
        self._stopped, self._stop = socket.socketpair()
        self._poller = select.poll()
        for one in (*self._doors.values(), self._stopped):
            one.setblocking(False)
            self._poller.register(one, select.POLLIN)
        self._thread = runtime.spawn(self._listen, "listener")

    def enter(self, job: bytes, generation: int) -> None:
        """Set the current job and generation; connections of earlier generations or other jobs are rejected."""
        with self._lock:
            self._now = job, generation
            for key in [key for key in self._calls if self._too_late(key)]:
                for kind, call in self._calls.pop(key).items():
                    self._turn_away(key[0], kind, call)

    def claim(self, key: Key) -> Link | None:
        """Return and answer the link of a rank that connected, once; None if it has not connected yet.

        Raises
        ------
        Unavailable
            It connected from a later generation: the expected generation is over.
        """
        job, caller, generation, _ = key
        with self._lock:
            latest = max((other[2] for other in self._calls if other[:2] == (job, caller)), default=generation)
            if latest > generation:
                raise Unavailable(f"is in generation {latest}, not in {generation} any more")
            calls = self._calls.get(key, {})
            if len(calls) < 2:
                return None
            del self._calls[key]
        self._answer(calls[NEWS], generation)
        return calls[MESSAGES], calls[NEWS]

    def close(self) -> None:
        """Stop listening; claimed links stay open."""
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
                if file in self._doors:
                    self._accept(self._doors[file])
                elif file in self._heard:  # may have been closed in this iteration
                    self._read_hello(file)

    def _accept(self, door: socket.socket) -> None:
        try:
            call, _ = door.accept()
        except OSError as error:  # the peer closed it; or too many files are open, and the next poll reports it again
            runtime.sleep(FULL_S * (error.errno in (errno.EMFILE, errno.ENFILE)))
            return
        with contextlib.suppress(OSError):
            at_once(call)
            if not same_user(call):
                return call.close()
            if self._seal is not None and call.family != socket.AF_UNIX:
                call = self._seal.wrap_accepted(call)
            self._heard[call.fileno()] = call, b""
            self._poller.register(call, select.POLLIN)
            if len(self._heard) > STRANGERS:
                self._forget(next(iter(self._heard))).close()

    def _read_hello(self, file: int) -> None:
        """Read more of a hello; close connections that send anything else."""
        call, before = self._heard[file]
        wanted = HELLO.size
        try:
            handshake(call, self._seal.role if self._seal is not None else "")
            mine = owner(call, call.getsockname(), self._since) if self._seal is None else None
            wanted += TOKEN_BYTES if mine is not None else 0
            more = call.recv(wanted - len(before))
        except BlockingIOError:
            return
        except (OSError, UserError):  # the peer closed it; or the secret that tokens need cannot be stored
            more = b""
        hello = before + more
        self._heard[file] = call, hello
        friendly = hello[: len(MAGIC)] == MAGIC[: len(hello)]
        if more and friendly and len(hello) < wanted:
            return
        self._forget(file)
        if not friendly or len(hello) < wanted:
            call.close()
            return
        _, *key, kind = HELLO.unpack(hello[: HELLO.size])
        ours = mine is None or mine.check(hello[HELLO.size :]) is Verdict.RIGHT
        if not ours or kind not in (MESSAGES, NEWS):
            call.close()
            return
        self._keep(tuple(key), kind, call)

    def _answer(self, call: socket.socket, generation: int) -> None:
        """Send the generation to a connected rank; on loopback with a token for its end."""
        with contextlib.suppress(OSError):  # the peer closed it; this is detected later
            theirs = owner(call, call.getpeername()) if self._seal is None else None
            call.send(ANSWER.pack(generation) + (theirs.token() if theirs is not None else b""))

    def _forget(self, file: int) -> socket.socket:
        """Stop polling a connection, whether its hello is complete or not."""
        self._poller.unregister(file)
        return self._heard.pop(file)[0]

    def _keep(self, key: Key, kind: int, call: socket.socket) -> None:
        with self._lock:
            if self._too_late(key):
                return self._turn_away(key[0], kind, call)
            calls = self._calls.setdefault(key, {})
            if kind in calls:  # the rank connected again
                calls[kind].close()
            calls[kind] = call
            if len(self._calls) > CALLERS:
                for one in self._calls.pop(next(iter(self._calls))).values():
                    one.close()

    def _too_late(self, key: Key) -> bool:
        """Whether a connection is for another job or an earlier generation."""
        return self._now is not None and (key[0] != self._now[0] or key[2] < self._now[1])

    def _turn_away(self, job: bytes, kind: int, call: socket.socket) -> None:
        assert self._now is not None
        if kind == NEWS and job == self._now[0]:
            self._answer(call, self._now[1])
        call.close()


def _unix_listener(address: str) -> list[socket.socket]:
    """Listening Unix socket of this name; none where the system does not support or allow such names.

    Raises
    ------
    OSError
        Another process has this name; connections would reach that process.
    """
    if not UNIX:
        return []
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind(unix_name(address))
        door.listen(BACKLOG)
    except OSError as error:
        door.close()
        if error.errno == errno.EADDRINUSE:
            raise
        return []
    return [door]
