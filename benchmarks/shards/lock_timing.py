"""Cost of timing the waits for a segment's lock: pushes and pulls with a timed lock and with a plain one.

    python -m benchmarks.shards.lock_timing

One shard, one segment, one thread, plain SGD: the least work beside the lock. Both kinds are measured in turn, `ROUNDS`
times, by the thread's own time, and the quietest rounds compared: a busy machine disturbs more than a lock. Then four
threads push to one segment, and their waits are printed.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from benchmarks.harness import options, timing
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.optim import make_rule
from dbelief.ps_server.store.concurrency import TimedLock
from dbelief.ps_server.store.shard import Shard

ROUNDS = 101
LENGTHS = (16, 1_024, 262_144)
THREADS = 4


def main() -> None:
    options.new_parser(__doc__).parse_args()
    print(f"{'numbers':>9} {'call':>5} {'plain us':>9} {'counted us':>10} {'more ns':>8} {'more':>7}")
    for length in LENGTHS:
        shards = {"plain": _shard(length, threading.Lock()), "counted": _shard(length, TimedLock())}
        calls = 400 if length < 10_000 else 20
        spent: dict[tuple[str, str], list[float]] = {}
        pushed = 0
        for _ in range(ROUNDS):
            for kind, shard in shards.items():
                spent.setdefault(("push", kind), []).append(_pushes(shard, length, pushed, calls) / calls)
                spent.setdefault(("pull", kind), []).append(_pulls(shard, calls) / calls)
            pushed += calls
        for call in ("push", "pull"):
            plain, counted = (min(spent[call, kind]) for kind in shards)
            more = counted - plain
            print(
                f"{length:9,} {call:>5} {plain * 1e6:9.3f} {counted * 1e6:10.3f} {more * 1e9:8.0f} {more / plain:7.2%}"
            )
    _together(LENGTHS[-1])


def _shard(length: int, lock: Any) -> Shard:
    shard = Shard([SegmentSpan(index=0, start=0, length=length)], make_rule("sgd", {}))
    shard.segments[0].lock = lock
    shard.push(Push(Pusher(9, 9), 1, assign=True), 0, np.zeros(length, np.float32))
    shard.make_ready()
    return shard


def _pushes(shard: Shard, length: int, before: int, calls: int, replica: int = 0) -> float:
    gradient = np.ones(length, np.float32)
    pusher = Pusher(replica, replica + 1)
    pushes = [Push(pusher, before + n + 1, np.float32(1e-6)) for n in range(calls)]
    return timing.seconds(lambda: [shard.push(push, 0, gradient) for push in pushes], time.thread_time)


def _pulls(shard: Shard, calls: int) -> float:
    return timing.seconds(lambda: [shard.pull(PARAMETERS, 0) for _ in range(calls)], time.thread_time)


def _together(length: int, calls: int = 500) -> None:
    shard = _shard(length, TimedLock())
    threads = [threading.Thread(target=_pushes, args=(shard, length, 0, calls, one)) for one in range(THREADS)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began_s
    waits, waited_s = shard.waits()
    print(
        f"{THREADS} threads, {THREADS * calls:,} pushes to one segment of {length:,} in {took_s:.2f} s: "
        f"{waits:,} waits, {waited_s:.2f} s of {THREADS * took_s:.2f} s"
    )


if __name__ == "__main__":
    main()
