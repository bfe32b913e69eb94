"""Memory that one client shares with the shards on its host: arrays in blocks, and the blocks each shard has attached.

Calls that use a block go over local streams, which each shard is asked for when they are first needed.

A block is offered to all shards of the first pull or push that uses its array, until they have replied. A shard that
refuses, or does not reply, gets no further offer in this incarnation. A shard that joins later is offered the block
then.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import logging
import socket
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dbelief.arrays.backend import aligned_float32
from dbelief.arrays.shared_memory import HEADER_BYTES, Block, block_of, log_unavailable, make_block
from dbelief.core.placement import ShardPlacement
from dbelief.errors import RuntimeFailure
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import named_errors
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb.segments_pb2 import SharedArray
from dbelief.rpc.wire import bulk, frames
from dbelief.rpc.wire.message_socket import PacketSocket
from dbelief.security import named_socket
from dbelief.security.same_user import same_user

from .socket_stream import SocketStream
from .stream_pool import Stream, StreamPool
from .watchdog import Watchdog

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""Timeout for opening a block at a shard; after it, segments go to this shard over TCP."""


class Location(NamedTuple):
    """Location of an array: a block, and the offset in bytes from its start."""

    block: Block
    offset: int


@dataclass(eq=False)
class _Peer:
    """One incarnation of a shard.

    Attributes
    ----------
    stream
        Stream in which blocks are attached; None where there are none.
    willing
        Whether it is offered blocks.
    names
        Of the blocks that it has attached.
    streams
        Idle local streams, by method.
    local
        Whether it is asked for further local streams; False once it has refused one, as an earlier version does.
    released
        State of the client's blocks in which those that were gone have been released here: `SharedBuffers._state`.
    """

    place: ShardPlacement
    stream: Stream | None
    willing: bool = True
    names: set[str] = field(default_factory=set)
    streams: dict[str, list[SocketStream]] = field(default_factory=dict)
    local: bool = True
    released: tuple[int, int] = 0, 0

    def is_at(self, place: ShardPlacement) -> bool:
        """Whether it is the current incarnation, whatever segments it holds."""
        return (self.place.shard, self.place.shard_epoch) == (place.shard, place.shard_epoch)


class SharedBuffers:
    """Blocks of one client. Safe to use from several threads, of which no two use one block at a time.

    Parameters
    ----------
    job
        The job's id.
    wanted
        Whether memory is shared at all.
    logs
        Whether it logs the shards that it shares memory with.
    """

    def __init__(self, job: str, streams: StreamPool, watchdog: Watchdog, wanted: bool, logs: bool) -> None:
        self._job, self._streams, self._watchdog = job, streams, watchdog
        self._wanted, self._logs = wanted, logs
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self._changes = 0  # count of the blocks that were added or got another name
        self._offsets: dict[int, tuple[weakref.ref[np.ndarray], int]] = {}  # of the arrays made here, by their ids
        self._peers: dict[str, _Peer] = {}
        self._logged: set[int] = set()
        self._lock = runtime.lock()

    def array(self, size: int) -> np.ndarray:
        """(size,) float32, all 0, aligned to 64 bytes: in a block where one can be made."""
        block = make_block(4 * size) if self._wanted and size else None
        if block is None:
            return aligned_float32(size)
        self.add(block)
        made = block.bytes(HEADER_BYTES, 4 * size).view(np.float32)
        with self._lock:
            left = {key: held for key, held in self._offsets.items() if held[0]() is not None}
            self._offsets = left | {id(made): (weakref.ref(made), HEADER_BYTES)}
        return made

    def add(self, block: Block) -> None:
        """Add a block, made here or opened, to those that shards are offered."""
        with self._lock:
            if block not in self._blocks:
                self._blocks.add(block)
                self._changes += 1

    def expects(self, places: Iterable[ShardPlacement]) -> bool:
        """Whether one of these shards accepts blocks, or has not been offered one."""
        if not self._wanted:
            return False
        with self._lock:
            peers = [(place, self._peers.get(place.address)) for place in places]
            return any(peer is None or not peer.is_at(place) or peer.willing for place, peer in peers)

    def find(self, values: np.ndarray) -> Location | None:
        """Location of a float32 array, if it is in a block of this client that has a name."""
        block = block_of(values)
        if block is None or not block.name or values.dtype != np.float32 or block not in self._blocks:
            return None
        known, offset = self._offsets.get(id(values), (None, None))
        if known is None or known() is not values:  # finding an address costs as much as all the rest
            offset = block.offset_of(values)
        return None if offset is None else Location(block, offset)

    def references(
        self, place: ShardPlacement, locations: Sequence[Location | None], origin: int
    ) -> list[SharedArray | None]:
        """Wire references to arrays for a shard incarnation; None for one whose block it has not attached.

        `origin` is the arrays' first number in the flat vector.
        """
        with self._lock:
            peer = self._peers.get(place.address)
            here = peer is not None and peer.is_at(place) and peer.stream is not None and peer.stream.open
            names = peer.names if peer is not None and here else ()
            return [
                _reference(found.block.name, found.offset, origin)
                if found is not None and found.block.name in names
                else None
                for found in locations
            ]

    def acquire(self, place: ShardPlacement, method: str) -> SocketStream | None:
        """An unused local stream to a shard that has attached blocks; None where it opens none."""
        with self._lock:
            peer = self._peers.get(place.address)
            if peer is None or not peer.is_at(place) or peer.stream is None:
                return None
            if idle := peer.streams.get(method):
                return idle.pop()
            return self._open_local(peer, method) if peer.local else None

    def put_back(self, place: ShardPlacement, method: str, stream: SocketStream) -> None:
        """Return a local stream, all of whose replies were read, to the idle ones of this incarnation of the shard."""
        stream.stale = True
        with self._lock:
            peer = self._peers.get(place.address)
            if peer is not None and peer.is_at(place) and peer.stream is not None:
                peer.streams.setdefault(method, []).append(stream)
            else:
                stream.end()

    def attach(self, blocks: Collection[Block], places: Iterable[ShardPlacement]) -> None:
        """Attach these blocks at all shards that accept shared memory, and detach blocks that are gone."""
        with self._lock:
            peers = [self._peer(place) for place in places]
            if any(peer.released != self._state for peer in peers):
                self._release(peers)
            for block in blocks:
                if any(peer.willing and block.name not in peer.names for peer in peers):
                    self._offer(block, peers)
                    self._log_new(peers)

    @property
    def _state(self) -> tuple[int, int]:
        """Differs after every change of the blocks: one that is gone, added, or renamed."""
        return len(self._blocks), self._changes

    def _release(self, peers: Collection[_Peer]) -> None:
        """Detach blocks that are gone."""
        state = self._state
        alive = {block.name for block in self._blocks}
        gone = {peer: sorted(peer.names - alive) for peer in peers if peer.names - alive}
        self._ask({peer: wire.AttachRequest(released=names) for peer, names in gone.items()})
        for peer in peers:
            peer.released = state

    def renew(self, blocks: Collection[Block]) -> None:
        """Abandon the memory that shards may still access, and replace each block by a copy."""
        with self._lock:
            for block in blocks:
                self._changes += 1
                block.renew()

    def leave(self, address: str) -> None:
        """Drop the shard at this address: it is gone."""
        with self._lock:
            if (peer := self._peers.pop(address, None)) is not None:
                _part(peer)

    def close(self) -> None:
        """Detach all blocks from every shard."""
        for address in list(self._peers):
            self.leave(address)

    def _peer(self, place: ShardPlacement) -> _Peer:
        """Current incarnation of a shard, with a stream to it where it may be offered blocks."""
        peer = self._peers.get(place.address)
        if peer is not None and peer.is_at(place) and (peer.stream is None or peer.stream.open):
            return peer
        if peer is not None:
            _part(peer)
        peer = self._peers[place.address] = _Peer(place, self._streams.acquire(place.address, "Attach"))
        return peer

    def _offer(self, block: Block, peers: Iterable[_Peer]) -> None:
        """Offer a block to all shards that accept blocks and have not attached it."""
        asked = [peer for peer in peers if peer.willing and block.name not in peer.names]
        offered = wire.SharedBlock(name=block.name, token=block.token, size=block.size)
        try:
            with block.offered():
                answers = self._ask({peer: wire.AttachRequest(block=offered) for peer in asked})
        except OSError as error:
            self._changes += 1  # it has lost its name
            log_unavailable(block.size, error)
            return
        for peer, answer in answers.items():
            if answer.attached:
                peer.names.add(block.name)
            elif peer.names:
                peer.willing = False
            else:
                _part(peer)

    def _open_local(self, peer: _Peer, method: str) -> SocketStream | None:
        name, token = named_socket.new_name(), named_socket.new_token()
        wanted = wire.LocalStream(name=name, token=token, method=method)
        connection = None
        with contextlib.suppress(OSError), named_socket.listening(name, frames.KIND) as door:
            answer = self._ask({peer: wire.AttachRequest(stream=wanted)}).get(peer)
            if answer is not None and answer.attached:
                connection = _accept(door, token)
        peer.local = connection is not None
        return SocketStream(PacketSocket(connection)) if connection is not None else None

    def _ask(self, requests: Mapping[_Peer, wire.AttachRequest]) -> dict[_Peer, wire.AttachReply]:
        """Replies of the shards; those that do not reply get no more blocks in this incarnation."""
        for peer, request in requests.items():
            assert peer.stream is not None
            place = peer.place
            target = wire.Target(job=self._job, shard_epoch=place.shard_epoch, run_id=place.run_id)
            request.target.CopyFrom(target)
            peer.stream.give([request.SerializeToString()])
        answers = {}
        for peer, request in requests.items():
            assert peer.stream is not None
            try:
                with named_errors("attach"), self._watchdog.watching(peer.stream, ANSWER_S):
                    answer = peer.stream.answer()
                answers[peer] = bulk.parse(wire.AttachReply, answer or b"")
                peer.names.difference_update(request.released)
            except RuntimeFailure:
                _part(peer)
        return answers

    def _log_new(self, peers: Iterable[_Peer]) -> None:
        new = {peer.place.shard for peer in peers if peer.names} - self._logged
        self._logged |= new
        if new and self._logs:
            which = " and ".join(str(shard) for shard in sorted(new))
            log.info(f"shares memory with shard{'s' * (len(new) > 1)} {which}")


@functools.lru_cache(maxsize=256)
def _reference(name: str, offset: int, origin: int) -> SharedArray:
    """A reference for messages, which copy it."""
    return SharedArray(block=name, offset=offset, origin=origin)


def _part(peer: _Peer) -> None:
    """End sharing with a shard, in this incarnation."""
    if peer.stream is not None:
        peer.stream.cancel()
    peer.stream, peer.willing = None, False
    peer.names.clear()
    for stream in (stream for idle in peer.streams.values() for stream in idle):
        stream.end()
    peer.streams.clear()


def _accept(door: socket.socket, token: bytes) -> socket.socket | None:
    """The connection of the shard that shows the token; None where another process has connected, or none has.

    Cost: a shard connects before it replies, so this does not wait.
    """
    door.settimeout(named_socket.CONNECT_S)
    try:
        connection, _ = door.accept()
    except OSError:
        return None
    connection.settimeout(named_socket.CONNECT_S)
    with contextlib.suppress(OSError):
        if same_user(connection) and hmac.compare_digest(connection.recv(len(token)), token):
            frames.prepare(connection)
            return connection
    connection.close()
    return None
