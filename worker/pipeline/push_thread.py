"""Push thread: gradients are pushed in order, while the next one is computed into another buffer."""

from __future__ import annotations

from collections.abc import Callable

from dbelief.core.push import PushResult
from dbelief.process.runtime import Queue, runtime

from .buffers import GradientBuffer


class PushThread:
    """Pushes gradients on a thread of its own.

    Parameters
    ----------
    push
        Sends one gradient and returns when it is acknowledged.
    slots
        The buffers: their number limits the pushes in progress or queued; beyond it `acquire_buffer` blocks.
    acknowledged
        Called for each completed push on the thread that sent it.
    """

    def __init__(
        self,
        push: Callable[[GradientBuffer], PushResult],
        slots: list[GradientBuffer],
        acknowledged: Callable[[GradientBuffer, PushResult], None],
    ) -> None:
        self._push = push
        self._acknowledged = acknowledged
        self._free: Queue[GradientBuffer] = runtime.queue()
        self._submitted: Queue[GradientBuffer | None] = runtime.queue()
        self._idle = runtime.condition()
        self._under_way = 0
        self._error: Exception | None = None
        for slot in slots:
            self._free.put(slot)
        self._thread = runtime.spawn(self._run, "push")

    def acquire_buffer(self) -> GradientBuffer:
        """Wait for a free buffer and return it."""
        slot = self._free.get()
        self.check()
        return slot

    def submit(self, slot: GradientBuffer) -> None:
        """Queue a filled buffer for its push; returns at once."""
        with self._idle:
            self._under_way += 1
        self._submitted.put(slot)

    def push_now(self, slot: GradientBuffer) -> None:
        """Push a filled buffer on the calling thread, after all that were submitted: no other thread has to run.

        Raises
        ------
        Exception
            The error of a push.
        """
        self.flush()
        self._acknowledged(slot, self._push(slot))
        self._free.put(slot)

    def flush(self) -> None:
        """Wait until every submitted buffer is acknowledged.

        Raises
        ------
        Exception
            The error of a push: a RuntimeFailure, or a bug.
        """
        with self._idle:
            self._idle.wait_for(lambda: self._under_way == 0)  # bounded: every push has a deadline
        self.check()

    def release_buffer(self, slot: GradientBuffer) -> None:
        """Return a buffer without a push."""
        self._free.put(slot)

    def close(self) -> None:
        """End the thread; submitted buffers are pushed first."""
        self._submitted.put(None)
        self._thread.join()

    def check(self) -> None:
        """Raise the error of a failed push, if any."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (slot := self._submitted.get()) is not None:
            try:
                if self._error is None:  # after a failure, later sequence numbers must not overtake it
                    self._acknowledged(slot, self._push(slot))
            except Exception as error:  # of any type: without it the computing thread would wait forever
                self._error = error
            self._free.put(slot)
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()
