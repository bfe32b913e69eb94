"""A call on a thread of its own, whose result is asked for later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from .runtime import runtime

T = TypeVar("T")


class Begun(Generic[T]):
    """A call that has been begun; its thread ends with the process, which does not wait for it."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._ended = runtime.event()
        self._results: list[T] = []
        self._error: BaseException | None = None
        runtime.spawn(self._run, name)

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:
            self._error = error
        self._ended.set()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def result(self) -> T:
        """Wait for its end; what it returned, or raise what it raised. The call has to be bounded."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]
