"""Parts of the simulation: locks exclude, waits time out, a disk loses what was not flushed, a cut link holds back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import RankFailure
from dbelief.process.atomic_file import atomic_write, use_disk
from dbelief.process.runtime import Empty, use_runtime
from tests.examples import examples
from worker.comm.engine import Message
from worker.comm.threads import ThreadEngine

from .world.disk import SimulatedDisk
from .world.groups import ProcessGroup
from .world.network import SimulatedNetwork
from .world.runtime import SimulatedLock, SimulatedRuntime
from .world.scheduler import RARE, Scheduler, Task


def run_all(scheduler: Scheduler, tasks: Sequence[Task]) -> None:
    """Run until all tasks have ended without an error."""
    scheduler.run(10.0)
    assert all(task.over for task in tasks)
    assert [task.error for task in tasks] == [None] * len(tasks)


@examples(30)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.2, 0.9]))
def test_a_lock_excludes_and_every_waiter_gets_it(seed: int, preempt: float) -> None:
    scheduler = Scheduler(seed, preempt)
    process, runtime = scheduler.process("one"), SimulatedRuntime(scheduler)
    lock, inside, passed = runtime.lock(), [0], list[int]()

    def enter(number: int) -> None:
        for _ in range(5):
            with lock:
                inside[0] += 1
                runtime.sleep(0.01 * (number % 2))
                assert inside[0] == 1
                inside[0] -= 1
        passed.append(number)

    run_all(scheduler, [scheduler.spawn(process, "task", partial(enter, number)) for number in range(4)])
    assert sorted(passed) == list(range(4))


def test_a_task_stalls_at_a_place_only_while_it_is_rare() -> None:
    scheduler = Scheduler(1, preempt=0.0, stall_rare=1.0)
    lock, stalled_s = SimulatedLock(scheduler), list[float]()

    def operate() -> None:
        for _ in range(2 * RARE):
            began_s = scheduler.now_s
            lock.acquire()
            stalled_s.append(scheduler.now_s - began_s)
            lock.release_at_once()

    run_all(scheduler, [scheduler.spawn(scheduler.process("one"), "task", operate)])
    assert all(seconds > 0 for seconds in stalled_s[:RARE])
    assert stalled_s[RARE:] == [0.0] * RARE


@examples(30)
@given(st.integers(0, 10_000), st.integers(0, 8))
def test_a_process_of_a_group_that_ends_ends_the_waits_of_the_others(seed: int, step: int) -> None:
    scheduler = Scheduler(seed, preempt=1.0)
    with use_runtime(SimulatedRuntime(scheduler)):
        group = ProcessGroup(2)
    waiting, ending = scheduler.process("waiting"), scheduler.process("ending")

    def receive() -> None:
        with suppress(RankFailure):
            ThreadEngine(group, 0).start([Message(False, np.zeros(3), 1, 0)]).wait(5.0)

    def send() -> None:
        with suppress(RankFailure):
            ThreadEngine(group, 1).start([Message(True, np.ones(3), 0, 0)]).wait(5.0)

    def end() -> None:
        for _ in range(step):
            scheduler.maybe_switch()
        scheduler.end(ending)
        group.fail("rank 1", RankFailure("its process has ended"))

    with use_runtime(SimulatedRuntime(scheduler)):
        received = scheduler.spawn(waiting, "receive", receive)
        scheduler.spawn(ending, "send", send)
        scheduler.spawn(scheduler.process("killer"), "end", end)
        scheduler.run(100.0)
    assert received.over


@examples(30)
@given(st.integers(0, 10_000))
def test_a_queue_keeps_its_order_and_its_timeout(seed: int) -> None:
    scheduler = Scheduler(seed, 0.5)
    process, runtime = scheduler.process("one"), SimulatedRuntime(scheduler)
    queue, taken = runtime.queue(), list[object]()

    def take() -> None:
        try:
            while True:
                taken.append(queue.get(timeout=1.0))
        except Empty:
            taken.append(runtime.monotonic())

    def put() -> None:
        for number in range(5):
            queue.put(number)
            runtime.sleep(0.5)

    run_all(scheduler, [scheduler.spawn(process, "take", take), scheduler.spawn(process, "put", put)])
    assert taken[:5] == list(range(5))
    assert 3.0 <= float(str(taken[5])) < 4.0


def test_a_task_of_an_ended_process_runs_no_further() -> None:
    scheduler = Scheduler(1)
    process, runtime = scheduler.process("one"), SimulatedRuntime(scheduler)
    steps: list[int] = []

    def count() -> None:
        while True:
            steps.append(1)
            runtime.sleep(1.0)

    scheduler.spawn(process, "count", count)
    scheduler.at(2.5, lambda: scheduler.end(process))
    assert not scheduler.run(10.0)
    assert len(steps) == 3
    scheduler.close()


def test_a_disk_keeps_what_was_flushed(tmp_path: Path) -> None:
    """A whole file survives the failure of its machine; one whose content was not flushed is cut."""
    for seed in range(10):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        scheduler = Scheduler(seed)
        process, runtime = scheduler.process("one"), SimulatedRuntime(scheduler)
        disk = SimulatedDisk(scheduler, folder)

        def write(folder: Path = folder, disk: SimulatedDisk = disk) -> None:
            with atomic_write(folder / "whole") as file:
                file.write(b"x" * 1_000)
            with disk.create(folder / "torn") as file:
                file.write(b"x" * 1_000)

        with use_runtime(runtime), use_disk(disk):
            run_all(scheduler, [scheduler.spawn(process, "write", write)])
            assert disk.machine_failed(process) == ["end of torn"]
        assert (folder / "whole").stat().st_size == 1_000
        assert (folder / "torn").stat().st_size < 1_000


@examples(30)
@given(st.integers(0, 10_000))
def test_messages_of_a_call_arrive_in_order_after_a_cut(seed: int) -> None:
    scheduler = Scheduler(seed)
    receiver, sender, runtime = scheduler.process("receiver"), scheduler.process("sender"), SimulatedRuntime(scheduler)
    received = list[bytes]()

    def receive(messages: Iterator[bytes], _: Any) -> Iterator[bytes]:
        received.extend(messages)
        yield b"all"

    def serve() -> None:
        server = network.server(runtime.executor(2, "calls"), [], [], 2)
        handler: Any = grpc.stream_stream_rpc_method_handler(receive)
        server.add_registered_method_handlers("parts", {"Send": handler})
        server.add_insecure_port("receiver:1")
        server.start()

    def messages() -> Iterator[bytes]:
        for number in range(20):
            if number == 10:
                network.cut(sender, receiver, 1.0, both_ways=False)
            yield bytes([number])
            runtime.sleep(0.01)

    def send() -> None:
        send_all: Any = network.channel("receiver:1", [], None).stream_stream("/parts/Send")
        assert list(send_all(messages())) == [b"all"]

    with use_runtime(runtime):
        network = SimulatedNetwork(scheduler, mean_s=0.03)
        run_all(scheduler, [scheduler.spawn(receiver, "serve", serve)])
        run_all(scheduler, [scheduler.spawn(sender, "send", send)])
    assert received == [bytes([number]) for number in range(20)]


def test_of_servers_at_one_address_the_last_that_runs_is_reached() -> None:
    """A coordinator that was suspended before it served may serve beside its successor, until it learns of that."""
    scheduler = Scheduler(0)
    first, second = scheduler.process("first"), scheduler.process("second")

    def serve() -> None:
        server = network.server(runtime.executor(1, "calls"), [], [], 1)
        server.add_insecure_port("service:1")
        server.start()

    runtime = SimulatedRuntime(scheduler)
    with use_runtime(runtime):
        network = SimulatedNetwork(scheduler, mean_s=0.03)
        assert network.process_at("service:1") is None
        for process in first, second:
            run_all(scheduler, [scheduler.spawn(process, "serve", serve)])
            assert network.process_at("service:1") is process
        scheduler.end(second)
        assert network.process_at("service:1") is first
        scheduler.end(first)
        assert network.process_at("service:1") is None
