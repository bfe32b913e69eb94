"""`dbelief bench kernels`: block-local kernels against one dense matrix product of as many operations.

The baseline is the tall product of all weights as one matrix (nr nc F) x K with K x M numbers: the same number of
operations and of weights to read as each kernel, without gathering or summing. Baseline and kernels alternate within
each round, so that other load on the machine affects all; the reported numbers are medians over the rounds. With one
thread on the host, processor time is measured, so time used by other processes is excluded; on a GPU, device time.

No kernel can be faster than its roofline time, max(operations / peak, bytes / bandwidth). Peak is measured with a large
square product, bandwidth with a copy of the weights, and bytes count each array once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dbelief.arrays.backend import Backend
from dbelief.nn.kernels import Blocks, make_kernels
from dbelief.nn.kernels.batched_gemm import Math

SQUARE = {"numpy": 1024, "cupy": 8192}
"""Side of the square product: saturates the processor, and takes less than a second."""

NAMES = {"wx": "Wx", "wty": "W^T y", "dxt": "δx^T", "dxt2": "δx^T of 2 M", "norms": "|W|"}


@dataclass(frozen=True)
class TimedKernel:
    """Measurements of one kernel.

    Attributes
    ----------
    seconds
        Median time.
    operations
        Floating point operations.
    x
        Operations per second over the tall product's, the median over the rounds.
    of_roof
        The roofline time over the measured time.
    """

    seconds: float
    operations: int
    x: float
    of_roof: float


def measure(
    blocks: Blocks,
    batch: int,
    rounds: int,
    backend: Backend,
    threads: int,
    math: Math = "float32",
    side: int | None = None,
) -> dict[str, TimedKernel]:
    """Time the kernels of one layer, with the given multiplication method (`make_kernels`).

    Memory: twice the weights.

    Parameters
    ----------
    rounds
        Each times the tall product and every kernel once; one more round comes first and is not counted.
    threads
        Of BLAS, on the host.
    side
        Of the square product; None: `SQUARE`, which measures the peak.
    """
    with threadpool_limits(threads if backend.name == "numpy" else None, "blas"):
        return _measure(blocks, batch, rounds, backend, threads, math, side or SQUARE[backend.name])


def _measure(
    blocks: Blocks, batch: int, rounds: int, backend: Backend, threads: int, math: Math, side: int
) -> dict[str, TimedKernel]:
    xp, k = backend.xp, blocks.fan_in
    kernels = make_kernels(blocks, batch, backend, math=math)
    w, x, y = (_drawn(backend, shape) for shape in (blocks.w_shape, blocks.x_shape(batch), blocks.y_shape(batch)))
    x2, y2 = (xp.concatenate([a, a], axis=-1) for a in (x, y))
    given, norms, to_w = xp.empty_like(x), xp.empty(blocks.norms_shape, np.float32), xp.empty_like(w)
    tall_w, tall_x, tall_y = w.reshape(-1, k), _drawn(backend, (k, batch)), xp.empty_like(y).reshape(-1, batch)
    square, product = _drawn(backend, (side, side)), xp.empty((side, side), np.float32)
    turns: dict[str, Callable[[], Any]] = {
        "tall": lambda: xp.matmul(tall_w, tall_x, out=tall_y),
        "square": lambda: xp.matmul(square, square, out=product),
        "copy": lambda: xp.copyto(to_w, w),
        "wx": lambda: kernels.forward(w, x, y),
        "wty": lambda: kernels.backward_data(w, y, given),
        "dxt": lambda: kernels.backward_weight(y, x, to_w),
        "dxt2": lambda: kernels.backward_weight(y2, x2, to_w),
        "norms": lambda: kernels.row_norms(w, norms),
    }
    seconds = in_turns(turns, rounds, backend, time.thread_time if threads == 1 else time.perf_counter)
    tall, base = seconds["tall"], blocks.flops(batch)
    peak, bandwidth = 2 * side**3 / min(seconds["square"]), 2 * w.nbytes / min(seconds["copy"])
    moved = {"wx": w.nbytes + x.nbytes + y.nbytes, "dxt2": w.nbytes + x2.nbytes + y2.nbytes, "norms": w.nbytes}
    operations = {"dxt2": 2 * base, "norms": 2 * w.size}
    results = {}
    for name in ("tall", *NAMES):
        count = operations.get(name, base)
        median = statistics.median(seconds[name])
        ratio = statistics.median(count * t / (base * own) for own, t in zip(seconds[name], tall, strict=True))
        roof = max(count / peak, moved.get(name, moved["wx"]) / bandwidth)
        results[name] = TimedKernel(median, count, ratio, roof / median)
    return results


def _drawn(backend: Backend, shape: tuple[int, ...]) -> Any:
    """Random numbers: zeros draw less power, and are faster to multiply."""
    return backend.to_device(np.random.default_rng(0).random(shape, dtype=np.float32) - np.float32(0.5))


Clock = Callable[[], float]


def in_turns(
    turns: dict[str, Callable[[], Any]], rounds: int, backend: Backend, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Time each of these once in every round, after one that is not counted: seconds by name, in the rounds' order.

    On the host they are those of the clock, on a GPU those of the device.
    """
    seconds = [{name: _seconds(turn, backend, clock) for name, turn in turns.items()} for _ in range(1 + rounds)][1:]
    return {name: [one[name] for one in seconds] for name in turns}


def _seconds(turn: Callable[[], Any], backend: Backend, clock: Clock) -> float:
    if backend.name == "numpy":
        began = clock()
        turn()
        return clock() - began
    begin, end = backend.xp.cuda.Event(), backend.xp.cuda.Event()
    begin.record()
    turn()
    end.record()
    end.synchronize()
    milliseconds: float = backend.xp.cuda.get_elapsed_time(begin, end)
    return milliseconds / 1e3


def device_name(backend: Backend) -> str:
    """Name of the computing device: "cpu", or the GPU's own name."""
    if backend.name == "numpy":
        return "cpu"
    found: str = backend.xp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return found


def figures(blocks: Blocks, batch: int, rounds: int, device: str, results: dict[str, TimedKernel]) -> dict[str, Any]:
    """All measurements by name: `KERNEL_x`, `KERNEL_seconds`, `KERNEL_gflops`, `KERNEL_of_roof`."""
    found: dict[str, Any] = {"device": device, **vars(blocks), "batch": batch, "rounds": rounds}
    for name, one in results.items():
        found[f"{name}_x"] = one.x
        found[f"{name}_seconds"] = one.seconds
        found[f"{name}_gflops"] = one.operations / one.seconds / 1e9
        found[f"{name}_of_roof"] = one.of_roof
    return found


def show(device: str, results: dict[str, TimedKernel]) -> None:
    """Print the measurements as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("kernel", "ms", "GFLOP/s", "x of the tall product", "of the roof", title=device)
    for name, one in results.items():
        speed, roof = f"{one.operations / one.seconds / 1e9:.1f}", f"{one.of_roof:.0%}"
        table.add_row(NAMES.get(name, "tall product"), f"{one.seconds * 1e3:.2f}", speed, f"{one.x:.2f}", roof)
    Console().print(table)
