"""A wait without progress is ended; one with progress, or with none to expect, is not."""

from __future__ import annotations

from dbelief.process.clock import ManualClock
from dbelief.rpc.client.watchdog import Progress, Watch, Watchdog
from tests.ps_server.servers import wait_until


class Stream:
    """Counts how often it was cancelled."""

    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def looked(progress: Progress | None, times_s: list[float]) -> tuple[Stream, Watch]:
    """A watch of 8 s from 0 on, checked at these times."""
    stream = Stream()
    watch = Watch(set(), stream, 8.0, progress, 0.0)
    for before_s, now_s in zip([0.0, *times_s], times_s, strict=False):
        watch.look(now_s, before_s)
    return stream, watch


def test_a_wait_without_progress_is_ended_once() -> None:
    stream, watch = looked(lambda: 0, [float(second) for second in range(1, 8)])
    assert (stream.cancelled, watch.expired) == (0, False)
    stream, watch = looked(lambda: 0, [float(second) for second in range(1, 12)])
    assert (stream.cancelled, watch.expired) == (1, True)


def test_progress_begins_the_time_again() -> None:
    steps = iter([0, *[1] * 6, *[2] * 7])
    stream, _ = looked(lambda: next(steps), [float(second) for second in range(1, 14)])
    assert stream.cancelled == 0


def test_a_stream_of_which_nothing_is_expected_may_be_silent() -> None:
    assert looked(lambda: None, [float(second) for second in range(1, 100)])[0].cancelled == 0


def test_the_time_that_this_process_was_suspended_does_not_count() -> None:
    assert looked(lambda: 0, [1.0, 101.0, 102.0])[0].cancelled == 0


def test_a_wait_that_is_limited_as_a_whole_ends_in_time_all_the_same() -> None:
    assert looked(None, [1.0, 7.0])[0].cancelled == 0
    assert looked(None, [1.0, 101.0])[0].cancelled == 1


def test_only_waits_are_watched() -> None:
    clock, stream = ManualClock(), Stream()
    watchdog = Watchdog(8.0, clock)

    def later() -> bool:
        clock.advance(0.5)
        return watch.expired

    try:
        with watchdog.watching(stream) as watch:
            wait_until(later)
        assert stream.cancelled == 1
        assert not watchdog._watches
    finally:
        watchdog.close()
