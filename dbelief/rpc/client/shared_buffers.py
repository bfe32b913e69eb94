"""The memory that one client shares with the shards on its host: arrays in blocks, and who has which block attached.

A block is offered to all shards of the first pull or push that its array is used in, until they have answered. A shard
that says no, or does not answer, is not asked again in this life. One that comes later is offered the block then.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dbelief.arrays.backend import aligned_float32
from dbelief.arrays.shared_memory import HEADER_BYTES, Block, log_unavailable, make_block
from dbelief.core.placement import ShardPlacement
from dbelief.errors import RuntimeFailure
from dbelief.process.console import announce
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc.channel import named_errors
from dbelief.rpc.segments_pb2 import SharedArray
from dbelief.rpc.wire import bulk

from .stream_pool import Stream, StreamPool, Watchdog

ANSWER_S = 5.0
"""How long a shard may take to open a block; then segments go over TCP to it."""


class Location(NamedTuple):
    """Where an array lies: a block, and bytes from its start."""

    block: Block
    offset: int


@dataclass(eq=False)
class _Peer:
    """One life of a shard.

    Attributes
    ----------
    stream
        In which blocks are attached; None where there are none.
    willing
        Whether it is offered blocks.
    names
        Of the blocks that it has attached.
    """

    place: ShardPlacement
    stream: Stream | None
    willing: bool = True
    names: set[str] = field(default_factory=set)

    def is_at(self, place: ShardPlacement) -> bool:
        """Whether it is the life that is there now, whatever it holds."""
        return (self.place.shard, self.place.shard_epoch) == (place.shard, place.shard_epoch)


class SharedBuffers:
    """The blocks of one client. Safe to use from several threads, of which no two use one block at a time.

    Parameters
    ----------
    job
        The job's id.
    wanted
        Whether memory is shared at all.
    tells
        Whether it says which shards it shares memory with.
    """

    def __init__(self, job: str, streams: StreamPool, watchdog: Watchdog, wanted: bool, tells: bool) -> None:
        self._job, self._streams, self._watchdog = job, streams, watchdog
        self._wanted, self._tells = wanted, tells
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self._peers: dict[str, _Peer] = {}
        self._told: set[int] = set()
        self._lock = threading.Lock()

    def array(self, size: int) -> np.ndarray:
        """(size,) float32, all 0, at a multiple of 64 bytes: in a block where there is one to be had."""
        block = make_block(4 * size) if self._wanted and size else None
        if block is None:
            return aligned_float32(size)
        with self._lock:
            self._blocks.add(block)
        return block.bytes(HEADER_BYTES, 4 * size).view(np.float32)

    def find(self, values: np.ndarray) -> Location | None:
        """Where an array of float32 lies, if it is in a block that others may see."""
        if values.dtype != np.float32:
            return None
        with self._lock:
            for block in self._blocks:
                offset = block.offset_of(values) if block.name else None
                if offset is not None:
                    return Location(block, offset)
        return None

    def seen(self, place: ShardPlacement, lies: Location | None, origin: int) -> SharedArray | None:
        """What a shard, in this life, is to be told of an array; None where it has not attached the array's block.

        `origin` is the array's first number in the flat vector.
        """
        if lies is None:
            return None
        with self._lock:
            peer = self._peers.get(place.address)
            if peer is None or not peer.is_at(place) or peer.stream is None or not peer.stream.open:
                return None
            if lies.block.name not in peer.names:
                return None
            return SharedArray(block=lies.block.name, offset=lies.offset, origin=origin)

    def attach(self, blocks: Collection[Block], places: Iterable[ShardPlacement]) -> None:
        """See that all shards that will share memory have these blocks attached, and none that is gone."""
        with self._lock:
            peers = [self._peer(place) for place in places]
            alive = {block.name for block in self._blocks}
            gone = {peer: sorted(peer.names - alive) for peer in peers if peer.names - alive}
            self._ask({peer: wire.AttachRequest(left=names) for peer, names in gone.items()})
            for block in blocks:
                if any(peer.willing and block.name not in peer.names for peer in peers):
                    self._offer(block, peers)
            self._tell(peers)

    def renew(self, blocks: Collection[Block]) -> None:
        """Leave what shards may still be at work on, and have a copy of each block in its place."""
        with self._lock:
            for block in blocks:
                block.renew()

    def leave(self, address: str) -> None:
        """Nobody lives there any more."""
        with self._lock:
            if (peer := self._peers.pop(address, None)) is not None:
                _part(peer)

    def close(self) -> None:
        """Have every shard let go of all blocks."""
        for address in list(self._peers):
            self.leave(address)

    def _peer(self, place: ShardPlacement) -> _Peer:
        """A life of a shard, with a stream to it where it may be offered something."""
        peer = self._peers.get(place.address)
        if peer is not None and peer.is_at(place) and (peer.stream is None or peer.stream.open):
            return peer
        if peer is not None:
            _part(peer)
        peer = self._peers[place.address] = _Peer(place, self._streams.take(place.address, "Attach"))
        return peer

    def _offer(self, block: Block, peers: Iterable[_Peer]) -> None:
        """Let all attach a block that are willing and have it not."""
        asked = [peer for peer in peers if peer.willing and block.name not in peer.names]
        offered = wire.SharedBlock(name=block.name, token=block.token, size=block.size)
        try:
            with block.offered():
                answers = self._ask({peer: wire.AttachRequest(block=offered) for peer in asked})
        except OSError as error:
            log_unavailable(block.size, error)
            return
        for peer, answer in answers.items():
            if answer.attached:
                peer.names.add(block.name)
            elif peer.names:
                peer.willing = False
            else:
                _part(peer)

    def _ask(self, requests: Mapping[_Peer, wire.AttachRequest]) -> dict[_Peer, wire.AttachReply]:
        """What shards answer; those that do not are parted with, for as long as they live."""
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
                peer.names.difference_update(request.left)
            except RuntimeFailure:
                _part(peer)
        return answers

    def _tell(self, peers: Iterable[_Peer]) -> None:
        new = {peer.place.shard for peer in peers if peer.names} - self._told
        self._told |= new
        if new and self._tells:
            which = " and ".join(str(shard) for shard in sorted(new))
            announce(f"shares memory with shard{'s' * (len(new) > 1)} {which}")


def _part(peer: _Peer) -> None:
    """Share nothing more with a shard, for as long as it lives."""
    if peer.stream is not None:
        peer.stream.cancel()
    peer.stream, peer.willing = None, False
    peer.names.clear()
