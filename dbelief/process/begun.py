"""A call on a thread of its own, whose result is asked for later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from .runtime import runtime

T = TypeVar("T")


def begun(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call on a thread that ends with the process: a script that fails does not wait for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    runtime.spawn(run, name)
    return future
