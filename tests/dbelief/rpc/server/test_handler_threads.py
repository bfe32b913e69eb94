"""The threads of a server: as many as there are calls, and none for long that has none."""

import threading
import time
from collections.abc import Iterator

import pytest

from dbelief.rpc.server.handler_threads import HandlerThreads

PATIENCE_S = 60.0


@pytest.fixture
def handlers() -> Iterator[HandlerThreads]:
    handlers = HandlerThreads(2, idle_s=0.01)
    yield handlers
    handlers.shutdown()


def test_threads_start_on_demand_and_end_when_idle(handlers: HandlerThreads) -> None:
    hold = threading.Event()
    seen = [handlers.submit(lambda: (hold.wait(PATIENCE_S), threading.current_thread())[1]) for _ in range(3)]
    assert handlers._threads == 2
    hold.set()
    assert 1 <= len({future.result(PATIENCE_S) for future in seen}) <= 2
    until_s = time.monotonic() + PATIENCE_S
    while handlers._threads:  # a thread that got none of the calls ends too, a little later perhaps
        assert time.monotonic() < until_s, f"{handlers._threads} threads are left"
        time.sleep(0.001)
    assert handlers._free == 0
    assert handlers.submit(lambda: 7).result(PATIENCE_S) == 7


def test_an_idle_thread_takes_the_next_call() -> None:
    handlers = HandlerThreads(2, idle_s=PATIENCE_S)
    first, second = (handlers.submit(threading.current_thread).result(PATIENCE_S) for _ in range(2))
    # the first one may not have come back yet when the second call came
    assert handlers._threads == len({first, second})
    handlers.shutdown()
    first.join(PATIENCE_S)
    assert not first.is_alive()


def test_exception_of_a_call_is_its_result(handlers: HandlerThreads) -> None:
    def wrong() -> None:
        raise ZeroDivisionError("seven")

    with pytest.raises(ZeroDivisionError, match="seven"):
        handlers.submit(wrong).result(PATIENCE_S)
    assert handlers.submit(lambda: 7).result(PATIENCE_S) == 7


def test_shutdown_refuses_calls_and_finishes_queued_ones() -> None:
    handlers, hold = HandlerThreads(1), threading.Event()
    held, waiting = handlers.submit(hold.wait, PATIENCE_S), handlers.submit(lambda: 7)
    handlers.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        handlers.submit(lambda: 8)
    hold.set()
    assert held.result(PATIENCE_S) is True
    assert waiting.result(PATIENCE_S) == 7
