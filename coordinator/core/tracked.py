"""A dictionary that records which of its rows have changed, so that a commit writes only those. No clock, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class TrackedDict(dict[K, V]):
    """A dictionary with the keys that were set, deleted or touched since `take_changed`.

    A value that is changed in place must be touched. Only the methods below may change it: `dict` has others.
    """

    def __init__(self, rows: Mapping[K, V] | None = None) -> None:
        super().__init__(rows or {})
        self._changed: set[K] = set(self)

    def touch(self, key: K) -> None:
        """Record that the value of a key has changed in place."""
        self._changed.add(key)

    def take_changed(self) -> set[K]:
        """The keys that have changed since the last call; some of them may be gone, or have their old value."""
        changed, self._changed = self._changed, set()
        return changed

    def __setitem__(self, key: K, value: V) -> None:
        self._changed.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self._changed.add(key)
        super().__delitem__(key)

    def pop(self, key: K, *default: Any) -> Any:
        """As `dict.pop`."""
        self._changed.add(key)
        return super().pop(key, *default)

    def setdefault(self, key: K, default: V) -> V:
        """As `dict.setdefault`."""
        if key not in self:
            self[key] = default
        return self[key]

    def _refused(self, *_: object, **__: object) -> Any:
        raise TypeError("a tracked dictionary changes by key")

    clear = update = popitem = __ior__ = _refused
