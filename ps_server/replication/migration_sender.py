"""Transfer of segments to another shard: the sending side of one `Carry` stream."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from dbelief.errors import Unavailable
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import parameters_pb2_grpc as stubs
from dbelief.rpc.channel import named_errors, open_channel

from .segment_state import SegmentState
from .wire import encode

STALL_TIMEOUT_S = 10.0
"""How long the receiver may accept no message before the transfer is aborted: commands block until it ends."""
_AHEAD = 4
"""Messages that may be queued for sending."""
_LOOK_S = 0.1


class SegmentSender:
    """Sender of segments to the shard at an address.

    Parameters
    ----------
    shard_epoch
        Incarnation that the receiving shard must have.
    command
        The coordinator's command that is being executed.

    Raises
    ------
    Unavailable, Rejected
        By any method: the receiver does not answer, or rejects the transfer.
    """

    def __init__(self, address: str, job: str, shard_epoch: int, command: wire.Command) -> None:
        self._where = f"carry: shard at {address}"
        self._channel = open_channel(address, "ps")
        self._out: queue.Queue[wire.CarryRequest | None] = queue.Queue(_AHEAD)
        self._sent = 0
        self._call = stubs.ParametersStub(self._channel).Carry(self._requests())
        opening = wire.CarryOpening(job=job, shard_epoch=shard_epoch, command=command, run_id=command.run_id)
        self._send(wire.CarryRequest(opening=opening))

    def _requests(self) -> Iterator[wire.CarryRequest]:
        while (message := self._out.get()) is not None:
            yield message

    def send(self, carried: SegmentState) -> None:
        """Send a segment; returns when its last message is queued."""
        for message in encode(carried):
            self._send(message)

    def _send(self, message: wire.CarryRequest | None) -> None:
        until_s = time.monotonic() + STALL_TIMEOUT_S
        while True:
            try:
                self._out.put(message, timeout=_LOOK_S)
                self._sent += message is not None
                return
            except queue.Full:
                if not self._call.is_active():
                    self._hear()
                    raise Unavailable(f"{self._where}: ended before all was there") from None
                if time.monotonic() > until_s:
                    raise Unavailable(f"{self._where}: took nothing in for {STALL_TIMEOUT_S:g} s") from None

    def finish(self) -> None:
        """End the stream; returns when the receiver has everything that was sent."""
        self._send(None)
        if self._hear() != self._sent:
            raise Unavailable(f"{self._where}: ended before all was there")

    def _hear(self) -> int:
        """Number of messages that the receiver reports, when the stream has ended."""
        taken = 0
        late = threading.Timer(STALL_TIMEOUT_S, self._call.cancel)
        late.start()
        try:
            with named_errors(self._where):
                for reply in self._call:
                    taken = reply.taken
        finally:
            late.cancel()
        return taken

    def __enter__(self) -> Self:
        """This sender."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()
        if error is not None:  # end the sending thread, which waits for the next message
            while not self._out.empty():
                self._out.get_nowait()
            self._out.put(None)
        self._channel.close()
