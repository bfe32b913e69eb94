"""The seam of time and threads: primitives come from the installed runtime."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from dbelief.process.clock import SystemClock
from dbelief.process.runtime import Runtime, runtime, use_runtime


class Frozen(Runtime):
    """A runtime whose time stands still but for `sleep`."""

    def __init__(self) -> None:
        self.now_s = 7.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_replacement_lasts_for_its_block() -> None:
    outer, inner = Frozen(), Frozen()
    with use_runtime(outer):
        runtime.sleep(1.0)
        with suppress(KeyError), use_runtime(inner):
            runtime.sleep(100.0)
            raise KeyError
        assert (runtime.monotonic(), SystemClock().now(), SystemClock().wall()) == (8.0, 8.0, 1_700_000_008.0)
    assert inner.now_s == 107.0
    assert abs(runtime.monotonic() - time.monotonic()) < 60


def test_threads_have_names_and_arguments() -> None:
    seen = runtime.queue()
    thread = runtime.spawn(lambda *given: seen.put((threading.current_thread().name, given)), "tested", 1, "two")
    thread.join(60)
    assert not thread.is_alive()
    assert seen.get(block=False) == ("tested", (1, "two"))
    with runtime.executor(2, "pool") as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]


def test_random_ids_are_positive_and_differ() -> None:
    class Zeros(Runtime):
        given = iter([bytes(8), b"\xff" * 8])

        def random_bytes(self, length: int) -> bytes:
            return next(self.given)

    ids = {runtime.random_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(0 < one < 1 << 63 for one in ids)
    assert Zeros().random_id() == (1 << 63) - 1
