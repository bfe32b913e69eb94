"""Sender of one `Carry` stream to another shard: of segments that migrate, or to a follower."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dbelief.errors import RuntimeFailure, Unavailable
from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import named_errors
from dbelief.rpc.client.stream_pool import StreamPool
from dbelief.rpc.client.watchdog import Progress, Watchdog
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk

WINDOW = 2
"""Batches that may be unsent: the next segment is captured while one is being sent."""
_LOOK_S = 0.1


class CarryStream:
    """Stream of batches of messages to the shard at an address.

    Each message is made when gRPC has sent the one before it.

    Parameters
    ----------
    where
        Prefix of error messages.
    patience_s
        Time without progress after which the stream is cancelled; see `Watchdog`.

    Attributes
    ----------
    sent
        Messages sent so far.
    streams, watchdog
        Of its connection.

    Raises
    ------
    Unavailable, Rejected
        By `give`, `replies` and `finish`: the receiver makes no progress, ends the stream early, or refuses it.
    """

    def __init__(self, address: str, where: str, patience_s: float, clock: Clock | None = None) -> None:
        self._where = where
        self.streams = StreamPool()
        self._stream = self.streams.acquire(address, "Carry")
        self.watchdog = Watchdog(patience_s, clock)
        self._window = runtime.semaphore(WINDOW)
        self.sent = 0

    def give(self, messages: Iterable[bytes]) -> None:
        """Queue a batch of messages; waits while `WINDOW` batches are unsent."""
        with self.watchdog.watching(self._stream, progress=lambda: self.sent) as watch:
            while not self._window.acquire(timeout=_LOOK_S):
                if watch.expired:
                    raise self._stalled()
                if not self._stream.open:
                    self._last_reply()  # raises the receiver's error, if it has one
                    raise self._ended_early()
        self._stream.give(self._counted(messages))

    def end(self) -> None:
        """End the stream after the batches given so far."""
        self._stream.end()

    def replies(self, progress: Progress) -> Iterator[int]:
        """Yield the receiver's counts of received messages, until it ends the stream.

        Parameters
        ----------
        progress
            See `Watchdog.watching`.
        """
        with self.watchdog.watching(self._stream, progress=progress) as watch:
            try:
                with named_errors(self._where):
                    while (reply := self._stream.answer()) is not None:
                        yield bulk.parse(wire.CarryReply, reply).received
            except RuntimeFailure as error:
                if watch.expired:
                    raise self._stalled() from error
                raise

    def finish(self) -> None:
        """End the stream; returns when the receiver has everything that was sent."""
        self.end()
        if self._last_reply() != self.sent:
            raise self._ended_early()

    def cancel(self) -> None:
        """Cancel the stream; a thread that reads its replies gets an error."""
        self._stream.cancel()

    def close(self) -> None:
        """Cancel the stream, and close its channel."""
        self.cancel()
        self.watchdog.close()
        self.streams.close()

    def _counted(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            yield message
            self.sent += 1
        self._window.release()

    def _last_reply(self) -> int:
        return max(self.replies(lambda: self.sent), default=0)

    def _ended_early(self) -> Unavailable:
        return Unavailable(f"{self._where}: the stream ended before all messages were received")

    def _stalled(self) -> Unavailable:
        return Unavailable(f"{self._where}: no progress for {self.watchdog.deadline_s:g} s")
