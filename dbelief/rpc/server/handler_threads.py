"""Threads of a gRPC server."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from dbelief.process.runtime import runtime

P = ParamSpec("P")
T = TypeVar("T")

IDLE_S = 5.0
"""Time without a call after which a thread exits, in seconds."""


class HandlerThreads(Executor):
    """A thread for each call, started where none is free. Unlike those of `Executor`, idle ones exit.

    Parameters
    ----------
    most
        Maximum number of threads; further calls are queued.
    idle_s
        Time that a thread waits for its next call; None: `IDLE_S`.
    """

    def __init__(self, most: int, idle_s: float | None = None) -> None:
        self._most, self._idle_s = most, IDLE_S if idle_s is None else idle_s
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = self._free = 0
        self._closed = False
        self._changed = runtime.condition()

    def submit(self, call: Callable[P, T], /, *words: P.args, **named: P.kwargs) -> Future[T]:
        """See `Executor.submit`; raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("this server is closed")
            self._calls.append((future, functools.partial(call, *words, **named)))
            if len(self._calls) <= self._free:
                self._changed.notify()
            elif self._threads < self._most:
                runtime.spawn(self._run, "handler")
                self._threads += 1
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; queued ones are still run. Does not block."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (given := self._next()) is not None:
            future, call = given
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del given, future, call  # release all references to the call before waiting

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; None where this thread is to exit."""
        with self._changed:
            self._free += 1
            self._changed.wait_for(lambda: self._calls or self._closed, self._idle_s)
            self._free -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None
