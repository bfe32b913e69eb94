"""Follower stream, leader's side: copies of the segments, then the journal records of later changes.

A segment is copied under its lock, and its changes are recorded from that moment; so its copy is sent before its first
record. Copies are sent one at a time between the records of other segments: training continues meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dbelief.errors import DbeliefError
from dbelief.process.clock import Clock, SystemClock
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.channel import named_errors, open_channel
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import program_to_wire, push_to_wire

from ..store.journal import DropStagedRecord, ForgetRecord, JournalRecord, ProgramRecord, PushRecord
from ..store.shard import Shard
from .link import ReplicationLink
from .segment_state import capture
from .wire import encode

_LOOK_S = 0.5
_LOOKS = 8
"""Checks by the watchdog within the time that a follower has to answer."""
_METHOD = "/dbelief.v1.Parameters/Carry"


class FollowerStream:
    """Messages sent to a follower, and how many of them it has acknowledged.

    Parameters
    ----------
    job, shard_epoch, run_id
        The job's id; the incarnation that the follower must have; the run's id.

    Attributes
    ----------
    answered
        Messages that the follower has acknowledged.
    """

    def __init__(self, shard: Shard, chain: ReplicationLink, job: str, shard_epoch: int, run_id: int = 0) -> None:
        self._shard = shard
        self._chain = chain
        self._epoch = chain.epoch
        self._rule = segments.Rule(name=shard.rule.name)
        self._opening = wire.CarryOpening(job=job, shard_epoch=shard_epoch, follow=True, run_id=run_id)
        self._sent: deque[tuple[int, bool]] = deque()  # per message: records sent by then, whether all segments are
        self._deeds = self.answered = 0

    def messages(self) -> Iterator[bytes]:
        """All messages, until the link of this epoch ends."""
        try:
            yield self._noted(wire.CarryRequest(opening=self._opening).SerializeToString())
            left = deque(sorted(self._shard.segments))
            whole = False
            while (taken := self._chain.take(self._epoch, bulk.FULL_BYTES, _LOOK_S if whole else 0.0)) is not None:
                yield from self._told(*taken)
                if self._chain.behind:
                    continue  # the queue must not grow while segments are copied
                if left:
                    yield from self._carried(left.popleft())
                elif not whole:
                    whole = True
                    self._chain.has_segments(self._epoch)
                    yield self._noted(b"", whole=True)
        except Exception as error:  # any failure: pushes wait on the link, which must report it
            self._chain.lose(self._epoch, f"{type(error).__name__}: {error}")

    def _noted(self, message: bytes, whole: bool = False) -> bytes:
        self._sent.append((self._deeds, whole))
        return message

    def _carried(self, index: int) -> Iterator[bytes]:
        segment = self._shard.segments.get(index)
        if segment is None:
            return  # migrated to another shard: the commit of the migration ends this link
        with segment.lock:
            if not self._chain.is_current(self._epoch):
                return  # its journal belongs to a newer link
            carried = capture(segment, None, self._shard.answers.for_segment(index), copy=True)
            segment.journal = self._chain.append
        for message in encode(carried):
            yield self._noted(message.SerializeToString())

    def _told(self, deeds: Sequence[JournalRecord], count: int) -> Iterator[bytes]:
        """Encode journal records in order; consecutive records of one push share a message."""
        self._deeds = count - len(deeds)
        for _, group in groupby(deeds, _together):
            some = list(group)
            self._deeds += len(some)
            first = some[0]
            yield self._noted(_pushed(some, self._rule) if isinstance(first, PushRecord) else _deed(first))

    def acknowledged(self, taken: int) -> None:
        """Record that the follower has the first `taken` messages."""
        deeds, whole = 0, False
        while self.answered < taken and self._sent:
            self.answered += 1
            deeds, last = self._sent.popleft()
            whole = whole or last
        self._chain.acknowledged(self._epoch, deeds, whole)

    @property
    def waits(self) -> bool:
        """Whether a message was sent that is not acknowledged."""
        return bool(self._sent)

    def lost(self, why: str) -> None:
        """Record that the follower ended the stream, or is unreachable."""
        self._chain.lose(self._epoch, why)


class FollowerSender:
    """Sender of a follower stream to the shard at an address, until it is closed, or the link or the follower ends it.

    A broken network path ends no stream; so a follower that has messages to acknowledge, and acknowledges none for
    `patience_s`, is treated as lost too.
    """

    def __init__(self, telling: FollowerStream, address: str, patience_s: float, clock: Clock | None = None) -> None:
        self._telling = telling
        self._patience_s, self._clock = patience_s, clock or SystemClock()
        self._closed = threading.Event()
        self._where = f"follower at {address}"
        self._channel = open_channel(address, "ps")
        carry: Any = self._channel.stream_stream(_METHOD, None, wire.CarryReply.FromString)
        self._call = carry(telling.messages())
        self._threads = [
            threading.Thread(target=self._read_acks, name="follower", daemon=True),
            threading.Thread(target=self._watchdog, name="follower's watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the stream; called when the shard continues without this follower."""
        self._closed.set()
        self._call.cancel()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _read_acks(self) -> None:
        why = "it ended the stream"
        try:
            with named_errors(self._where):
                for reply in self._call:
                    self._telling.acknowledged(reply.taken)
        except DbeliefError as error:
            why = str(error)
        self._telling.lost(why)
        self._closed.set()

    def _watchdog(self) -> None:
        answered, since_s = self._telling.answered, self._clock.now()
        looked_s = since_s
        while not self._clock.wait(self._closed, self._patience_s / _LOOKS):
            now_s, before_s = self._clock.now(), looked_s
            looked_s = now_s
            slept = now_s - before_s > self._patience_s / 2  # this process was suspended: an answer may be unread
            if slept or not self._telling.waits or self._telling.answered != answered:
                answered, since_s = self._telling.answered, now_s
            elif now_s - since_s >= self._patience_s:
                self._telling.lost(f"{self._where}: has answered nothing for {self._patience_s:g} s")
                self._call.cancel()
                return


def _together(deed: JournalRecord) -> object:
    """Key that is equal for journal records that share a message."""
    return (deed.push, deed.exchange, deed.skipped) if isinstance(deed, PushRecord) else id(deed)


def _pushed(deeds: Sequence[Any], rule: segments.Rule) -> bytes:
    """Encode the segments of one push as a message."""
    first: PushRecord = deeds[0]
    opening = push_to_wire(first.push, wire.Target(), rule, len(deeds))
    opening.exchange, opening.skipped = first.exchange, first.skipped
    pieces: list[bytes | memoryview] = [bulk.opening(opening.SerializeToString())]
    for deed in deeds:
        part = deed.form or bulk.part_of(deed.index, 0, deed.values)
        pieces += bulk.pieces(
            bulk.SegmentPayload(deed.index, deed.version, deed.offset, len(deed.values), part.codec, data=part.data)
        )
    return b"".join(pieces)


def _deed(deed: JournalRecord) -> bytes:
    told = wire.Deed(segment=deed.index, version=deed.version)
    if isinstance(deed, ProgramRecord):
        told.program.operations.extend(program_to_wire(deed.program))
    elif isinstance(deed, DropStagedRecord):
        told.dropped.incarnations.extend(sorted(deed.incarnations))
    elif isinstance(deed, ForgetRecord):
        told.forgotten.incarnations.extend(sorted(deed.incarnations))
    else:
        told.round = True
    return wire.CarryRequest(deed=told).SerializeToString()
