"""The fetch thread: the newest parameters, one copy being computed on while the other is filled."""

from __future__ import annotations

import queue
import threading

from dbelief.core.placement import Parameters

from .buffers import ParameterBuffer


class FetchThread:
    """Fetches parameters on a thread of its own.

    Parameters
    ----------
    copies
        Two copies. The caller computes on the one it took last; a fetch fills the other.
    """

    def __init__(self, parameters: Parameters, copies: tuple[ParameterBuffer, ParameterBuffer]) -> None:
        self._parameters = parameters
        self._spare, self._taken = copies
        self._asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._filled: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._under_way = False
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    def request(self, clock: int) -> None:
        """Begin to fill the spare copy for `clock`, unless that is under way."""
        if not self._under_way:
            self._under_way = True
            self._asked.put(clock)

    def get(self) -> ParameterBuffer:
        """The filled copy; waits for it. From now on the copy taken before is the spare one.

        Raises
        ------
        Exception
            What ended the fetch; a Failure, or a bug.
        """
        assert self._under_way, "take() without ask()"
        error = self._filled.get()
        self._under_way = False
        if error is not None:
            raise error
        self._spare, self._taken = self._taken, self._spare
        return self._taken

    def close(self) -> None:
        """End the thread."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (clock := self._asked.get()) is not None:
            if self._spare.locally_modified:  # nothing of it may be taken for unchanged
                self._spare.versions[:] = -1
                self._spare.locally_modified = False
            try:
                self._parameters.pull(self._spare.host, self._spare.versions, clock=clock)
                self._filled.put(None)
            except Exception as error:  # whatever it is: the thread that waits must hear of it, or it waits forever
                self._filled.put(error)
