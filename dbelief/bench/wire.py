"""`dbelief bench wire`: how fast parameters are pulled and gradients pushed, against what a socket gives.

One worker, a process that does nothing else, and one shard, a real `dbelief ps`: one vector cut into segments as a
job cuts it, over loopback TCP; a push is done when Adagrad is applied to all of it and acknowledged. Against it,
between two processes as well: the same bytes through a bare socket into a block made beforehand, once as a socket
comes, which is what the ratios are against, and once as fast as one is known to be; through torch's gloo where torch
can be imported; and a copy within this process. All take turns within each round, so that whatever else
the machine does meets them all; a ratio is taken within a round, and its median over the rounds is told.

Then a few workers push at the same time, to see how even their waits are; and a model of MNIST's size goes to and fro
between two shards, to see what a step costs in processor time, on both sides together.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.backend import aligned

from .peers import Peer, block_for
from .shards import JOB, Shards

SMALL = 203_530
"""Parameters of a network of 784, 256 and 10 units."""
SMALL_SHARDS = 2
WARM_UP = 2
"""Rounds that are not counted."""

Turn = Callable[[], float]
"""Does its work once and tells the seconds."""


def measure(mib: int, rounds: int, workers: int, pushes: int, push_mib: int, steps: int) -> dict[str, Any]:
    """All figures; see `dbelief bench wire --help`.

    Raises
    ------
    Failure
        A process that is needed does not come up, or ends.
    """
    with tempfile.TemporaryDirectory(prefix="dbelief-bench-") as folder:
        found: dict[str, Any] = {"mib": mib, "rounds": rounds, "cores": os.cpu_count()}
        found |= _ratios(Path(folder), mib << 20, rounds)
        found["workers"] = _workers(Path(folder), workers, pushes, push_mib << 20)
        found["small"] = _small(Path(folder), steps)
    return found


def _timed(turn: Callable[[], Any]) -> float:
    began = time.perf_counter()
    turn()
    return time.perf_counter() - began


# -- one worker, one shard -----------------------------------------------------------------------------------


def _ratios(folder: Path, size: int, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(folder, size // 4))
        turns = _ours(worker(stack, folder, shards)) | _copy(size)
        turns |= _bare(stack, folder, size, "socket") | _bare(stack, folder, size, "fast_socket")
        if importlib.util.find_spec("torch"):
            turns |= _gloo(stack, folder, size)
        seconds: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(WARM_UP + rounds):
            order = list(turns) if number % 2 else list(turns)[::-1]
            for name in order:
                taken = turns[name]()
                if number >= WARM_UP:
                    seconds[name].append(taken)
        found = {f"{name}_ms": statistics.median(taken) * 1e3 for name, taken in seconds.items()}
        found["pull_x"] = _ratio(seconds["socket_pull"], seconds["pull"])
        found["push_x"] = _ratio(seconds["socket_push"], seconds["push"])
        found["roundtrip_x"] = _ratio(_sum(seconds, ""), _sum(seconds, "socket_"))
        found["copy_x"] = _ratio(seconds["socket_pull"], seconds["copy"])
        for other in ("fast_socket", "gloo"):
            if f"{other}_pull" in seconds:
                found[f"{other}_pull_x"] = _ratio(seconds["socket_pull"], seconds[f"{other}_pull"])
                found[f"{other}_push_x"] = _ratio(seconds["socket_push"], seconds[f"{other}_push"])
                found[f"{other}_roundtrip_x"] = _ratio(_sum(seconds, f"{other}_"), _sum(seconds, "socket_"))
        found["shard_mib"] = shards.resident_mib()
    return found


def _ratio(upper: list[float], lower: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(upper, lower, strict=True))


def _sum(seconds: dict[str, list[float]], what: str) -> list[float]:
    return [pull + push for pull, push in zip(seconds[f"{what}pull"], seconds[f"{what}push"], strict=True)]


def worker(
    stack: ExitStack, folder: Path, shards: Shards, number: int = 0, part: tuple[int, int] | None = None
) -> Peer:
    """A worker of these shards, or of a part of their numbers."""
    peer = stack.enter_context(Peer("worker", folder, f"worker-{number}-of-{shards.placement.size}"))
    peer.ask(
        {
            "job": JOB,
            "rule": shards.rule[0],
            "options": shards.rule[1],
            "spans": [list(asdict(span).values()) for span in shards.spans],
            "places": [list(asdict(where).values()) for where in shards.placement.places],
            "pusher": [number + 1, number + 2],
            "part": part,
        }
    )
    return peer


def _ours(worker: Peer) -> dict[str, Turn]:
    """A pull of all segments, and a push of all."""

    def turn(what: str) -> float:
        seconds: list[float] = worker.ask({"turns": [what], "times": 1})["seconds"]
        return seconds[0]

    return {what: functools.partial(turn, what) for what in ("pull", "push")}


def _copy(size: int) -> dict[str, Turn]:
    """One array into another, one thread."""
    target, source = aligned(size, np.uint8), aligned(size, np.uint8)
    target[:], source[:] = 1, 2
    return {"copy": lambda: _timed(lambda: np.copyto(target, source))}


def _bare(stack: ExitStack, folder: Path, size: int, name: str) -> dict[str, Turn]:
    """A block through a socket; a push is acknowledged by a line. "socket" or "fast_socket": see `block_for`."""
    peer = stack.enter_context(Peer("socket", folder, name))
    fast = name == "fast_socket"
    peer.ask({"bytes": size, "fast": fast})
    block = block_for(peer.line, size, fast)

    def pull() -> None:
        peer.line.tell("pull")
        peer.line.receive(block)

    def push() -> None:
        peer.line.tell("push")
        peer.line.send(block)
        peer.hear()

    return {f"{name}_pull": lambda: _timed(pull), f"{name}_push": lambda: _timed(push)}


def _gloo(stack: ExitStack, folder: Path, size: int) -> dict[str, Turn]:
    """A tensor from rank to rank; a push is acknowledged by one number."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [stack.enter_context(Peer("gloo", folder, f"gloo-{rank}")) for rank in range(2)]
    for rank, peer in enumerate(ranks):
        peer.line.tell({"bytes": size, "rank": rank, "port": port})
    for peer in ranks:
        peer.hear()

    def turn(what: str) -> float:
        for peer in ranks:
            peer.line.tell(what)
        seconds: list[float] = [peer.hear() for peer in ranks]
        return seconds[0]

    return {"gloo_pull": lambda: turn("pull"), "gloo_push": lambda: turn("push")}


# -- several workers, and a small model ----------------------------------------------------------------------


def _workers(folder: Path, count: int, pushes: int, size: int) -> dict[str, Any]:
    """`count` workers push vectors of `size` bytes, one after another, at the same time: `pushes` in all."""
    each = -(-pushes // count)
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(folder, size // 4))
        peers = [worker(stack, folder, shards, number) for number in range(count)]
        for times in (WARM_UP, each):
            for peer in peers:
                peer.line.tell({"turns": ["push"], "times": times})
            seconds = [one for peer in peers for one in peer.hear()["seconds"]]
    p50, p99 = (float(np.percentile(seconds, q)) for q in (50, 99))
    return {
        "count": count,
        "pushes": len(seconds),
        "mib": size >> 20,
        "p50_ms": p50 * 1e3,
        "p99_ms": p99 * 1e3,
        "p99_over_p50": p99 / p50,
    }


def _small(folder: Path, steps: int) -> dict[str, Any]:
    """Processor time of pull and push of a small model."""
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(folder, SMALL, SMALL_SHARDS))
        one = worker(stack, folder, shards)
        one.ask({"turns": ["pull", "push"], "times": 20})
        there = shards.cpu_s()
        done = one.ask({"turns": ["pull", "push"], "times": steps})
        here, there, wall = (s * 1e3 / steps for s in (done["cpu_s"], shards.cpu_s() - there, sum(done["seconds"])))
    return {
        "parameters": SMALL,
        "shards": SMALL_SHARDS,
        "segments": len(shards.spans),
        "steps": steps,
        "cpu_ms_per_step": here + there,
        "worker_cpu_ms": here,
        "shards_cpu_ms": there,
        "wall_ms": wall,
    }


# -- for people ----------------------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    """Print the figures as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("", "pull ms", "push ms", "pull x", "push x", "round trip over the socket's")
    rows = [("dbelief", "", found["roundtrip_x"]), ("socket", "socket_", 1.0)]
    for name, prefix in (("socket, aligned memory", "fast_socket_"), ("gloo", "gloo_")):
        if f"{prefix}pull_ms" in found:
            rows.append((name, prefix, found[f"{prefix}roundtrip_x"]))
    for name, prefix, roundtrip in rows:
        ratios = [found.get(f"{prefix}{what}_x", 1.0) for what in ("pull", "push")]
        times = [f"{found[f'{prefix}{what}_ms']:.1f}" for what in ("pull", "push")]
        table.add_row(name, *times, *(f"{one:.2f}" for one in ratios), f"{roundtrip:.2f}")
    table.add_row("copy", f"{found['copy_ms']:.1f}", "", f"{found['copy_x']:.2f}", "", "")
    table.title = f"{found['mib']} MiB, {found['rounds']} rounds; x: the socket's time over this one's"
    console.print(table)
    workers, small = found["workers"], found["small"]
    console.print(
        f"{workers['count']} workers at once, {workers['pushes']} pushes of {workers['mib']} MiB: "
        f"p50 {workers['p50_ms']:.1f} ms, p99 {workers['p99_ms']:.1f} ms, {workers['p99_over_p50']:.2f} times as long"
    )
    console.print(
        f"{small['parameters']:,} parameters in {small['segments']} segments on {small['shards']} shards: "
        f"{small['cpu_ms_per_step']:.2f} ms of processor time per step, {small['worker_cpu_ms']:.2f} in the worker, "
        f"{small['shards_cpu_ms']:.2f} in the shards; {small['wall_ms']:.2f} ms by the clock"
    )
