"""One rank of a group of processes: connections to all others, and notices of failed or departed ranks.

On the connection for notices a rank sends one message, when it ends: a goodbye, or which rank failed and the cause. If
that connection ends without a message, the peer has failed. A rank that receives a failure forwards it, so that all
ranks report the first cause.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType

import numpy as np

from dbelief.process.clock import Clock, SystemClock
from dbelief.process.runtime import runtime

from ..engine import Handle, Message, PeerFailure, rank_failed, timed_out
from .connection import Connection, Transfer

NEWS_BYTES = 1024
"""Maximum length of a failure notice; the kernel accepts it at once."""
TELL_S = 1.0
"""Seconds that a rank that lost the messages of another one waits for the notice with the cause."""
GOODBYE = b"\0"


class _Peer:
    """The connections to another rank, and the final notice received from it."""

    def __init__(self, name: str, messages: socket.socket, news: socket.socket) -> None:
        self.name = name
        self.messages = messages
        self.stream = Connection(messages)
        self.news = news
        self.said = b""
        self.left = False
        self.mask = 0

    def send_notice(self, word: bytes) -> None:
        """Send the final notice to this peer."""
        with contextlib.suppress(OSError):
            self.news.send(word)
            self.news.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.messages.close()
        self.news.close()


class SocketEngine:
    """This process as one rank; transfers NumPy arrays. Created by `connect_mesh`.

    Parameters
    ----------
    addresses
        Addresses of all ranks, for error messages.
    connections
        To each other rank: one for messages and one for notices, both non-blocking; owned by the engine from now on.
    """

    xp: ModuleType = np

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        connections: Mapping[int, tuple[socket.socket, socket.socket]],
        clock: Clock | None = None,
    ) -> None:
        self.rank = rank
        self.size = len(addresses)
        self._clock: Clock = clock or SystemClock()
        self._name = f"rank {rank} at {addresses[rank]}"
        self._peers = {
            peer: _Peer(f"rank {peer} at {addresses[peer]}", *both) for peer, both in sorted(connections.items())
        }
        self._by_stream = {peer.messages.fileno(): peer for peer in self._peers.values()}
        self._by_news = {peer.news.fileno(): peer for peer in self._peers.values()}
        self._woken, self._wake = socket.socketpair()
        self._poller, self._newsstand = select.poll(), select.poll()
        for poller in (self._poller, self._newsstand):
            for file in (self._woken.fileno(), *self._by_news):
                poller.register(file, select.POLLIN)
        self._lock = runtime.lock()
        self._death: PeerFailure | None = None
        self._closed = False

    def start(self, messages: Sequence[Message]) -> Handle:
        """Start messages, and move what can move at once; a send is complete when the kernel has accepted it."""
        self.check()
        transfers = [Transfer(message) for message in messages]
        moving = {}
        for transfer in transfers:
            peer = self._peers[transfer.message.peer]
            peer.stream.post(transfer)
            moving[transfer.message.peer] = peer
        for peer in moving.values():
            self._move(peer)
        return Handle(partial(self._wait, transfers))

    def _wait(self, transfers: Sequence[Transfer], deadline_s: float) -> None:
        """Move all messages that can move until these are complete; see `Handle`."""
        until_s: float | None = None
        while waiting := [transfer.message for transfer in transfers if not transfer.over]:
            if self._death is not None:
                raise rank_failed(self._death, self.rank, waiting)
            now_s = self._clock.now()
            if until_s is None:
                until_s = now_s + deadline_s
            elif now_s >= until_s:
                raise timed_out(deadline_s, self.rank, waiting)
            self._progress(max(0.0, until_s - now_s))
        for transfer in transfers:
            if transfer.misfit is not None:
                array = transfer.message.array
                raise ValueError(
                    f"rank {self.rank} wants {transfer.message} as {array.size} {array.dtype}, "
                    f"and there it is {transfer.misfit}"
                )

    def check(self) -> None:
        """Raise RankFailure if a rank has failed; cost: one poll for notices."""
        if self._death is None and self._peers:
            self._read_notices(self._clock.poll(self._newsstand, 0.0))
        if self._death is not None:
            raise rank_failed(self._death, self.rank)

    def abort(self, error: BaseException) -> None:
        """Report this rank's failure: end its own wait and, with its name and error, all others'; thread-safe."""
        self._fail(PeerFailure.of(self._name, error))

    def close(self) -> None:
        """Send a goodbye and leave; messages already sent arrive."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for peer in self._peers.values():
            peer.send_notice(GOODBYE)
            peer.close()
        self._woken.close()
        self._wake.close()

    # -- transfer ----------------------------------------------------------------------------------------------

    def _progress(self, timeout_s: float) -> None:
        """Wait until a message can move or a notice arrives, and process all events; notices first."""
        ready = self._clock.poll(self._poller, timeout_s)
        self._read_notices(ready)
        for file, _ in ready:
            if self._death is None and file in self._by_stream:
                self._move(self._by_stream[file])

    def _move(self, peer: _Peer) -> None:
        """Send and receive without blocking, and register for further events."""
        stream = peer.stream
        try:
            stream.write()
            stream.read()
        except (OSError, EOFError) as error:
            self._watch(peer, 0)
            self._lost(peer, error)
        else:
            self._watch(peer, select.POLLIN * stream.expects | select.POLLOUT * stream.sends)

    def _watch(self, peer: _Peer, mask: int) -> None:
        if mask == peer.mask:
            return
        if mask:
            self._poller.register(peer.messages, mask)
        else:
            self._poller.unregister(peer.messages)
        peer.mask = mask

    # -- failures and departures -------------------------------------------------------------------------------

    def _lost(self, peer: _Peer, error: Exception) -> None:
        """Handle the loss of a peer's messages: the cause arrives on its other connection."""
        newsstand = select.poll()
        newsstand.register(peer.news, select.POLLIN)
        until_s = self._clock.now() + TELL_S
        while self._death is None and not peer.left and (left_s := until_s - self._clock.now()) > 0:
            self._read_notices(self._clock.poll(newsstand, left_s))
        self._fail(PeerFailure(peer.name, f"ConnectionError: {'it has left the group' if peer.left else error}"))

    def _read_notices(self, ready: list[tuple[int, int]]) -> None:
        """Read the final notices of peers."""
        for file, _ in ready:
            peer = self._by_news.get(file)
            if peer is None or not _ended(peer):
                continue
            for poller in (self._poller, self._newsstand):
                poller.unregister(file)
            del self._by_news[file]
            if peer.said == GOODBYE:
                peer.left = True
            elif peer.said:
                who, _, cause = peer.said.decode(errors="replace").partition("\n")
                self._fail(PeerFailure(who, cause))
            else:
                self._fail(PeerFailure(peer.name, "ConnectionError: it is gone without a word"))

    def _fail(self, death: PeerFailure) -> None:
        """Record a failure and forward it; only the first one counts."""
        with self._lock:
            if self._death is not None or self._closed:
                return
            self._death = death
            word = f"{death.who}\n{death.cause}".encode()[:NEWS_BYTES]
            for peer in self._peers.values():
                peer.send_notice(word)
                with contextlib.suppress(OSError):
                    peer.messages.shutdown(socket.SHUT_RDWR)
            self._wake.send(b"!")


def _ended(peer: _Peer) -> bool:
    """Read a peer's notice; return whether it is complete."""
    try:
        while said := peer.news.recv(NEWS_BYTES):
            peer.said += said
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
