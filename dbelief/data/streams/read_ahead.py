"""Reading of units ahead of their use, on threads of its own and within a bound of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dbelief.errors import DataError, StorageError, Unavailable
from dbelief.process.runtime import runtime

from .unit_source import UnitArrays, UnitSource

READ_S = 100.0
"""Seconds that a unit may take to be read: less than those after which a replica without progress is removed."""
READERS = 2
"""Units that are read at a time: one is converted while the next comes from the disk."""


class ReadAhead:
    """Units of one user's plan, in memory from their reading until the user is past their window.

    The units of the window in use are always held, so that `bound` must have room for them.

    Parameters
    ----------
    source
        Where units are read from.
    bound
        Bytes of the units in memory, with those that are being read.
    """

    def __init__(self, source: UnitSource, bound: int) -> None:
        self.source, self._bound = source, bound
        self._changed = runtime.condition()
        self._planned: deque[int] = deque()  # not read yet
        self._window: dict[int, int] = {}  # of each unit of the plan
        self._held: dict[int, UnitArrays] = {}
        self._failed: dict[int, Exception] = {}
        self._reading: set[int] = set()
        self._threads = 0
        self._in_use = 0
        self._beside: tuple[int, UnitArrays] | None = None  # the last unit that was read without a plan

    def plan(self, windows: Sequence[Sequence[int]]) -> None:
        """Set the units that are used next, window by window; those of an earlier plan are dropped. []: none are."""
        with self._changed:
            self._window = {unit: number for number, units in enumerate(windows) for unit in units}
            self._in_use = 0
            self._failed.clear()
            # A unit of a later window may be in the way of those that are used first.
            self._held = {unit: arrays for unit, arrays in self._held.items() if self._window.get(unit) == 0}
            known = self._held.keys() | self._reading
            self._planned = deque(unit for unit in self._window if unit not in known)
            self._start()

    def get(self, unit: int) -> UnitArrays:
        """A unit's arrays; units of earlier windows are dropped.

        Raises
        ------
        DataError, StorageError
            It cannot be read.
        """
        with self._changed:
            window = self._window.get(unit, -1)
            if window >= self._in_use:
                if window > self._in_use:
                    self._pass_to(window)
                return self._await(unit)
        if self._beside is None or self._beside[0] != unit:  # no plan has it, or the user goes back
            self._beside = unit, self._read(unit)
        return self._beside[1]

    def _await(self, unit: int) -> UnitArrays:
        if not self._changed.wait_for(lambda: unit in self._held or unit in self._failed, READ_S):
            raise DataError(f"{self.source.called(unit)}: was not read within {READ_S:g} s; are its units too large?")
        if unit in self._failed:
            raise self._failed[unit]
        return self._held[unit]

    def _read(self, unit: int) -> UnitArrays:
        try:
            return self.source.read(unit)
        except Unavailable as error:  # elsewhere that is said of shards, the coordinator, and workers of a group
            raise StorageError(str(error)) from error

    def _pass_to(self, window: int) -> None:
        """Drop the units of earlier windows."""
        self._in_use = window
        for passed in [unit for unit in self._held if self._window[unit] < window]:
            del self._held[passed]
        while self._planned and self._window[self._planned[0]] < window:
            self._planned.popleft()
        self._start()

    def _start(self) -> None:
        """Start reading threads, as many as there are units to read now."""
        while self._threads < READERS and (unit := self._take()) is not None:
            self._threads += 1
            runtime.spawn(self._run, "read-ahead", unit)

    def _take(self) -> int | None:
        """The unit to read now, which counts as being read from here on; None: there is none."""
        if not self._may_read():
            return None
        unit = self._planned.popleft()
        self._reading.add(unit)
        return unit

    def _may_read(self) -> bool:
        if not self._planned:
            return False
        unit = self._planned[0]
        held = sum(arrays.nbytes for arrays in self._held.values()) + sum(map(self.source.bytes_of, self._reading))
        return self._window[unit] <= self._in_use or held + self.source.bytes_of(unit) <= self._bound

    def _run(self, first: int) -> None:
        unit: int | None = first
        found: UnitArrays | Exception
        while unit is not None:
            try:
                found = self._read(unit)
            except Exception as error:  # of any type: without it the user of the unit would wait for nothing
                found = error
            unit = self._put(unit, found)

    def _put(self, unit: int, found: UnitArrays | Exception) -> int | None:
        """Hand over what was read; the unit to read next, or None: the thread ends."""
        with self._changed:
            self._reading.discard(unit)
            if self._window.get(unit, -1) >= self._in_use:  # else the user is past it, or has another plan
                if isinstance(found, Exception):
                    self._failed[unit] = found
                else:
                    self._held[unit] = found
            self._changed.notify_all()
            following = self._take()
            self._threads -= following is None
            return following
