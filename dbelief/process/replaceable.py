"""Objects of a process that a simulation, or a test, can replace as a whole: `runtime`, `disk`, `transport`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


class _Installed:
    """Public methods of the installed object, as attributes: a call costs one more attribute lookup."""

    def __init__(self, installed: Any) -> None:
        self._methods = [name for name in dir(installed) if not name.startswith("_")]
        self._install(installed)

    def _install(self, installed: Any) -> None:
        self._behind = installed
        for name in self._methods:
            setattr(self, name, getattr(installed, name))


def replaceable(default: T) -> tuple[T, Callable[[T], AbstractContextManager[None]]]:
    """An object that forwards to `default`, and a context manager that makes it forward to another object.

    What the object has returned before, such as a lock or an open file, is not affected by a replacement. Blocks may be
    nested; they are of the process, not of a thread.
    """
    installed = _Installed(default)

    @contextmanager
    def use(replacement: T) -> Iterator[None]:
        before = installed._behind
        installed._install(replacement)
        try:
            yield
        finally:
            installed._install(before)

    return cast(T, installed), use
