"""A registry behind a network: every call takes time, and may fail before or after it was executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dbelief.errors import Unavailable
from dbelief.process.runtime import runtime
from dbelief.registry import MemoryRegistry

from .scheduler import Scheduler


class SimulatedRegistry:
    """A `Registry`, shared by all coordinators.

    Parameters
    ----------
    stored
        Called with what a coordinator has written, and with all that is stored then, at the moment of the write.

    Attributes
    ----------
    away_until_s
        Virtual time until which no call is answered.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        behind: MemoryRegistry,
        stored: Callable[[Mapping[str, bytes | None], Mapping[str, bytes]], None],
    ) -> None:
        self._scheduler = scheduler
        self._stored = stored
        self._behind = behind
        self.away_until_s = 0.0

    def lose(self, empty: MemoryRegistry) -> None:
        """Lose all content: an empty registry is behind it from now on."""
        self._behind = empty

    def _call(self, method: str, *words: Any) -> Any:
        draw = self._scheduler.random
        runtime.sleep(draw.expovariate(1 / 0.001))
        away = self._scheduler.now_s < self.away_until_s
        if away and draw.random() < 0.5:
            raise Unavailable("the registry does not answer")
        result = getattr(self._behind, method)(*words)
        if method == "write":
            job, _, values = words
            self._stored(values, self._behind.read(job))
        runtime.sleep(draw.expovariate(1 / 0.001))
        if away:  # it was executed, and the reply is lost
            raise Unavailable("the registry does not answer")
        return result

    def acquire(self, job: str, owner: str, ttl_s: float) -> int | None:
        epoch: int | None = self._call("acquire", job, owner, ttl_s)
        return epoch

    def holder(self, job: str) -> tuple[str, float] | None:
        found: tuple[str, float] | None = self._call("holder", job)
        return found

    def renew(self, job: str, epoch: int, ttl_s: float) -> bool:
        return bool(self._call("renew", job, epoch, ttl_s))

    def write(self, job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        self._call("write", job, epoch, values)

    def read(self, job: str) -> dict[str, bytes]:
        found: dict[str, bytes] = self._call("read", job)
        return found

    def raise_epoch(self, job: str, at_least: int) -> None:
        self._call("raise_epoch", job, at_least)

    def release(self, job: str, epoch: int) -> None:
        self._call("release", job, epoch)

    def close(self) -> None:
        pass
