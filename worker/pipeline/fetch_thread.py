"""Fetch thread with one or two copies of the parameters: with two, one is computed on while the other is filled."""

from __future__ import annotations

from typing import Protocol

from dbelief.core.placement import Parameters
from dbelief.process.runtime import Queue, runtime
from dbelief.training.parameter_buffer import ParameterBuffer


class Fetcher(Protocol):
    """Fetches parameters where nothing is fetched ahead of its use."""

    def fetch_now(self, clock: int) -> ParameterBuffer:
        """Fetch on the calling thread, and return the copy."""
        ...

    def close(self) -> None:
        """End the fetcher."""
        ...


class FetchThread:
    """Fetches parameters on a thread of its own.

    Parameters
    ----------
    copies
        Two copies. The caller computes on the last one returned by `get` or `swap`; a fetch fills the other. Both may
        be the same one, where the caller never computes during a fetch.
    """

    def __init__(self, parameters: Parameters, copies: tuple[ParameterBuffer, ParameterBuffer]) -> None:
        self._parameters = parameters
        self._spare, self._taken = copies
        self._requested: Queue[int | None] = runtime.queue()
        self._filled: Queue[Exception | None] = runtime.queue()
        self._under_way = False
        self._thread = runtime.spawn(self._run, "fetch")

    def request(self, clock: int) -> None:
        """Start to fill the spare copy for `clock`, unless a fetch is in progress."""
        if not self._under_way:
            self._under_way = True
            self._requested.put(clock)

    def get(self) -> ParameterBuffer:
        """Wait for the filled copy and return it, as `swap` does.

        Raises
        ------
        Exception
            The error of the fetch: a RuntimeFailure, or a bug.
        """
        assert self._under_way, "get() without request()"
        error = self._filled.get()
        self._under_way = False
        if error is not None:
            raise error
        return self.swap()

    def fetch_now(self, clock: int) -> ParameterBuffer:
        """Fetch on the calling thread: no other thread has to run; returns the copy, as `swap` does.

        Raises
        ------
        RuntimeFailure
            The shards cannot be reached, or reject the request.
        """
        assert not self._under_way, "a fetch fills it"
        self._fetch(clock)
        return self.swap()

    @property
    def spare(self) -> ParameterBuffer:
        """The copy to be filled next; while no fetch is in progress the caller may fill it, and `swap`."""
        assert not self._under_way, "a fetch fills it"
        return self._spare

    def swap(self) -> ParameterBuffer:
        """Return the filled copy. The copy returned before becomes the spare one."""
        self._spare, self._taken = self._taken, self._spare
        return self._taken

    def close(self) -> None:
        """End the thread."""
        self._requested.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (clock := self._requested.get()) is not None:
            error: Exception | None = None
            try:
                self._fetch(clock)
            except Exception as raised:  # of any type: without it the computing thread would wait forever
                error = raised
            self._filled.put(error)

    def _fetch(self, clock: int) -> None:
        self._spare.prepare_fetch()
        self._parameters.pull(self._spare.host, self._spare.versions, clock=clock)
