import os
import select
import threading
import time

import pytest

from dbelief.process.clock import Clock, ManualClock, SystemClock


def test_manual_clock_moves_only_by_advance() -> None:
    clock = ManualClock(start_s=5.0, wall_start_s=1000.0)
    assert (clock.now(), clock.wall()) == (5.0, 1000.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (7.5, 1002.5)


def test_manual_clock_never_goes_back() -> None:
    with pytest.raises(ValueError, match="-1"):
        ManualClock().advance(-1)


def test_manual_wait_ends_when_time_is_over() -> None:
    clock, event, answers = ManualClock(), threading.Event(), list[bool]()
    thread = threading.Thread(target=lambda: answers.append(clock.wait(event, 10.0)))
    thread.start()
    assert clock.until_waiting(1)
    clock.advance(9.9)
    assert clock.until_waiting(1)
    assert not answers
    clock.advance(0.1)
    thread.join(60)
    assert answers == [False]


def test_manual_wait_ends_when_the_event_is_set() -> None:
    clock, event, answers = ManualClock(), threading.Event(), list[bool]()
    thread = threading.Thread(target=lambda: answers.append(clock.wait(event, 10.0)))
    thread.start()
    assert clock.until_waiting(1)
    event.set()
    thread.join(60)
    assert answers == [True]
    assert clock.now() == 0.0


def test_autojump_waits_without_a_second_thread() -> None:
    clock, event = ManualClock(autojump=True), threading.Event()
    assert clock.wait(event, 3600.0) is False
    assert clock.now() == 3600.0
    event.set()
    assert clock.wait(event, 3600.0) is True
    assert clock.now() == 3600.0


def test_until_waiting_reports_a_timeout() -> None:
    assert ManualClock().until_waiting(1, timeout_s=0.0) is False


def test_system_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before = time.monotonic()
    assert before <= clock.now() <= time.monotonic()
    assert abs(clock.wall() - time.time()) < 60
    event = threading.Event()
    assert clock.wait(event, -1.0) is False
    event.set()
    assert clock.wait(event, float("inf")) is True


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(autojump=True)], ids=["system", "manual"])
def test_a_poll_ends_when_a_file_is_ready_or_time_is_over(clock: Clock) -> None:
    out, into = os.pipe()
    try:
        poller = select.poll()
        poller.register(out, select.POLLIN)
        began_s = clock.now()
        assert clock.poll(poller, 0.01) == []
        assert clock.now() - began_s >= 0.009
        assert clock.poll(poller, -1.0) == []
        os.write(into, b"!")
        assert clock.poll(poller, float("inf")) == [(out, select.POLLIN)]
    finally:
        os.close(out)
        os.close(into)
