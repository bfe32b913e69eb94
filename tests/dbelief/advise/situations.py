"""Measurements made by hand, of jobs that one thing bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbelief.advise.measurements import Measurements, ProcessorLoad, ShardLoad, WorkerLoad
from dbelief.job import Job, build_job

WINDOW_S = 10.0
PARAMETERS = 356_170


def job_of(**strategy: Any) -> Job:
    fields = {
        "name": "advised",
        "model": {"layers": [{"dense": 10}], "loss": "softmax_cross_entropy"},
        "data": {"source": "digits"},
        "strategy": {"name": "downpour", "batch": 8, "rule": {"name": "sgd", "rate": 0.01}, **strategy},
        "limits": {"epochs": 10},
    }
    return build_job(fields, Path(), "job")


def processors(host: str, used: float = 0.05, busy: float = 0.5, machine: str = "", answer_s: float = 0.02) -> Any:
    """Of a process on a host; all hosts are machines of their own, unless one is named."""
    return ProcessorLoad(machine or host, host, 2.0, used, busy, answer_s)


def worker(number: int, host: str = "a", used: float = 0.05, busy: float = 0.5, **step_ms: float) -> WorkerLoad:
    """A worker whose mini-batches take so many milliseconds by phase, for the whole window."""
    steps = int(1000 * WINDOW_S / sum(step_ms.values()))
    moved = 4 * PARAMETERS * steps
    seconds = {phase: steps * one / 1000 for phase, one in step_ms.items()}
    return WorkerLoad(number, 8 * steps, steps, steps, moved, moved, seconds, processors(host, used, busy))


def idle(number: int, host: str = "a") -> WorkerLoad:
    return WorkerLoad(number, 0, 0, 0, 0, 0, {"wait": WINDOW_S}, processors(host))


def shard(number: int = 0, host: str = "a", used: float = 0.05, busy: float = 0.5) -> ShardLoad:
    return ShardLoad(number, PARAMETERS, processors(host, used, busy))


def measured(
    workers: list[WorkerLoad], shards: list[ShardLoad] | None = None, job: Job | None = None, **more: Any
) -> Measurements:
    return Measurements(job or job_of(), WINDOW_S, False, tuple(workers), tuple(shards or [shard()]), **more)


def link(exchange_ms: float = 270.0, hosts: int = 3) -> Measurements:
    """Hosts with a worker and a shard each; half of the exchange is its push."""
    names = [str(number) for number in range(hosts)]
    workers = [
        worker(number, host, compute=200, push=exchange_ms / 2, fetch=exchange_ms / 2)
        for number, host in enumerate(names)
    ]
    return measured(workers, [shard(number, host) for number, host in enumerate(names)])


def one_shard() -> Measurements:
    """Six workers whose bytes pass the link of one shard's host: 4.4 exchanges a second of 0.22 s in each direction."""
    return measured([worker(number, str(number), compute=400, push=480, fetch=480) for number in range(6)], [shard()])


def straggler(slow_ms: float = 300.0) -> Measurements:
    fast = [worker(number, compute=30, push=slow_ms - 28, fetch=1) for number in range(2)]
    slow = worker(2, compute=slow_ms, push=2, fetch=1)
    return measured([*fast, slow], job=job_of(staleness=0))


def data() -> Measurements:
    return measured([worker(number, compute=1, data=16, push=1) for number in range(2)])


def computing() -> Measurements:
    """Both processors of the machine are in use by two workers."""
    workers = [worker(number, compute=20, push=1, used=0.95, busy=2.0) for number in range(2)]
    return measured(workers, [shard(busy=2.0)])


def spare() -> Measurements:
    return measured([worker(number, compute=50, push=1) for number in range(2)])


def small_batch() -> Measurements:
    return measured([worker(number, compute=0.4, push=2.7, used=0.3, busy=1.0) for number in range(2)])


def leases() -> Measurements:
    """Four leases for six workers."""
    return measured(
        [*(worker(number, compute=50, push=1) for number in range(4)), idle(4), idle(5)],
        lease_samples=2000,
        total_samples=8000,
        unleased_samples=0,
    )


def machine() -> Measurements:
    return measured(
        [worker(number, str(number), used=0.002, compute=50, push=850, fetch=850) for number in range(2)],
        [shard(number, str(number), used=0.002) for number in range(2)],
    )


BOUNDS = {
    "link": link,
    "shards": one_shard,
    "straggler": straggler,
    "data": data,
    "computing": computing,
    "small batch": small_batch,
    "leases": leases,
    "one machine": machine,
}
