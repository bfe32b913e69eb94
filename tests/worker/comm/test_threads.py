"""Threads as ranks: the rules of any engine, one copy, deadlines, and the effect of a death on the others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.errors import RankFailure, Unavailable
from dbelief.process.clock import ManualClock
from tests.worker.comm.group import BODIES, OneRaises
from worker.comm import Communicator, Message, run_ranks
from worker.comm.communicator import HIGHEST_TAG
from worker.comm.threads import Group, ThreadEngine
from worker.comm.tracing import TracingEngine

DEADLINE_S = 60.0


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.__name__))
def test_a_group(body: Callable[[Communicator], None], size: int) -> None:
    run_ranks(size, body, DEADLINE_S)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.__name__))
def test_a_group_of_threads_that_take_turns_often(body: Callable[[Communicator], None], eager_threads: None) -> None:
    run_ranks(4, body, DEADLINE_S)


@pytest.mark.parametrize(("size", "numbers"), [(4, 1000), (3, 7), (5, 2), (2, 0)])
def test_cost_of_a_sum(size: int, numbers: int) -> None:
    def body(comm: Communicator) -> TracingEngine:
        engine = TracingEngine(comm.engine)
        Communicator(engine).allreduce(np.ones(numbers))
        return engine

    engines = run_ranks(size, body)
    total = sum((engine.sent_bytes for engine in engines), Counter[tuple[int, int]]()).total()
    assert total == 2 * (size - 1) * numbers * 8
    assert all(engine.messages.total() <= 2 * (size - 1) for engine in engines)


def test_a_barrier_holds_until_the_last() -> None:
    entered = threading.Semaphore(0)

    def body(comm: Communicator) -> int:
        if comm.rank == 2:
            for _ in range(3):
                entered.acquire()
            late.append(comm.rank)
        else:
            entered.release()
        comm.barrier()
        return len(late)

    late: list[int] = []
    assert run_ranks(4, body, DEADLINE_S) == [1, 1, 1, 1]


def test_a_rank_that_raises_ends_all_others_at_once() -> None:
    body, began_s = OneRaises(), time.monotonic()
    with pytest.raises(ZeroDivisionError, match="a rate of 0"):
        run_ranks(4, body, 60.0)
    assert time.monotonic() - began_s < 10.0
    assert body.ends == {
        rank: "rank 2 died of ZeroDivisionError: a rate of 0; "
        f"rank {rank} waited for rank {1 - rank} to send 32 bytes (tag 9)"
        for rank in (0, 1)
    }


def test_unresponsive_rank_is_named_at_the_timeout() -> None:
    clock = ManualClock()
    group = Group(2, clock)
    comm = Communicator(ThreadEngine(group, 0), deadline_s=30.0)
    taken = np.zeros(2)
    pending = comm.irecv(taken, 1, tag=4)
    told: list[BaseException] = []

    def waits() -> None:
        try:
            pending.wait()
        except Unavailable as error:
            told.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    assert clock.until_waiting(1)
    clock.advance(29.0)
    assert thread.is_alive()
    clock.advance(1.0)
    thread.join(60)
    assert str(told[0]) == "nothing came for 30 s; rank 0 waited for rank 1 to send 16 bytes (tag 4)"
    # It was taken back: whoever sends now does not write into that array.
    Communicator(ThreadEngine(group, 1)).isend(np.ones(2), 0, tag=4)
    assert taken.tolist() == [0, 0]


def test_a_rank_that_never_answers_ends_the_others() -> None:
    forever = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            forever.wait(30.0)
        else:
            comm.barrier()

    with pytest.raises(Unavailable, match=r"waited for rank \d to") as failed:
        run_ranks(3, body, deadline_s=1.0)
    assert failed.value.__notes__ == ["rank 1 had not ended 1 s later"]
    forever.set()


def test_computing_rank_can_check_for_deaths() -> None:
    group = Group(2)
    engines = [ThreadEngine(group, rank) for rank in range(2)]
    engines[0].check()
    engines[1].abort(ValueError("no"))
    engines[1].abort(ValueError("the first death counts"))
    with pytest.raises(RankFailure, match="rank 1 died of ValueError: no; reported to rank 0"):
        engines[0].check()
    with pytest.raises(RankFailure, match="rank 1 died"):
        Communicator(engines[0]).isend(np.ones(1), 1)


def test_mismatched_sides_are_reported() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.ones(4, np.float32), 1)
        else:
            comm.recv(np.ones(2, np.float64), 0)

    with pytest.raises(
        ValueError, match=r"wants rank \d to .* bytes \(tag 0\) as . float.., and there it is . float.."
    ):
        run_ranks(2, body)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(True, np.ones(1), 0), "rank 0 has no peer 0 among 2 ranks"),
        (Message(True, np.ones(1), 2), "no peer 2"),
        (Message(False, np.ones(1), -1), "no peer -1"),
        (Message(True, np.ones(1), 1, HIGHEST_TAG + 1), "tag is 32001"),
        (Message(True, np.ones((3, 3))[:, 1], 1), "must be C-contiguous"),
    ],
)
def test_a_wrong_message_is_refused_at_the_door(message: Message, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Communicator(ThreadEngine(Group(2), 0)).start([message])


def test_wrong_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="a group of 0 ranks"):
        Group(0)
    with pytest.raises(ValueError, match="deadline_s is 0"):
        Communicator(ThreadEngine(Group(1), 0), 0)
    with pytest.raises(ValueError, match="C-contiguous"):
        Communicator(ThreadEngine(Group(1), 0)).allreduce(np.ones((3, 3)).T)


def test_a_copy_that_fails_ends_both_of_its_ranks() -> None:
    """The one that waits is told, though the message is under way and not to be withdrawn any more."""

    class Failing:
        """NumPy on a device that does not copy."""

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def copyto(self, target: np.ndarray, source: np.ndarray) -> None:
            raise MemoryError("the device has no room")

    deaths: list[str] = []

    def body(comm: Communicator) -> None:
        try:
            comm.recv(np.empty(3), 1 - comm.rank) if comm.rank else comm.send(np.ones(3), 1)
        except RankFailure as died:
            deaths.append(str(died))
            raise

    xp = Failing()
    xp.__dict__["cuda"] = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None))
    with pytest.raises(MemoryError, match="no room") as caught:
        run_ranks(2, body, 2.0, xp=xp)
    assert not hasattr(caught.value, "__notes__"), "no rank is left behind"
    assert len(deaths) == 1
    assert "died of MemoryError: the device has no room" in deaths[0]
