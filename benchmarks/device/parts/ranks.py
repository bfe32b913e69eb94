"""Model parallelism on one device: a network cut over ranks, each a thread with a part of it, beside the whole one."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.device.findings import Findings, check_close
from benchmarks.device.parts import jobs
from benchmarks.harness import checkout, timing
from dbelief.arrays.backend import Backend, select_backend
from dbelief.nn import Batch, Network, build_network
from dbelief.partition import Grid
from dbelief.worker.comm import Communicator, run_ranks
from dbelief.worker.partition import build_partitioned

LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("conv", {"maps": 16, "kernel": 5}),
    ("relu", {}),
    ("max_pool", {"size": 2}),
    ("dense", {"units": 10}),
]
GRIDS = Grid(1, 2), Grid(2, 2)
SIDE, BATCH, ROUNDS = 96, 64, 9
SMALL_SIDE, SMALL_BATCH, SMALL_ROUNDS = 20, 4, 2
APART = 1e-3
"""How far a gradient may be from the whole network's, as a share of its largest number: sums in another order."""

Tensors = dict[str, np.ndarray]


def measure(found: Findings, small: bool) -> None:
    """Compute loss and gradient on each grid, and train a job on two ranks."""
    side, batch, rounds = (SMALL_SIDE, SMALL_BATCH, SMALL_ROUNDS) if small else (SIDE, BATCH, ROUNDS)
    backend, rng = select_backend("cuda"), np.random.default_rng(0)
    samples = Batch(rng.standard_normal((batch, side, side, 3), dtype=np.float32), rng.integers(0, 10, batch))
    tensors = dict(network(backend, side).parameters(np.random.default_rng(1)))
    alone_s, whole = alone(backend, tensors, samples, rounds)
    for grid in GRIDS:
        seconds, apart = together(grid, backend, tensors, whole, samples, rounds)
        found.figure(f"step of {grid.size} ranks", 1e3 * seconds, "ms", {"whole": 1e3 * alone_s})
        found.figure(f"gradient of {grid.size} ranks, largest difference", apart, "of its largest number")
        check_close(f"difference of the gradient of {grid.size} ranks", apart, 0.0, APART)
    example = jobs.EXAMPLES["digits"]
    fields = dict(example.small if small else example.large)
    two, one = (jobs.train(checkout.EXAMPLES / "digits.yaml", "cuda", {**fields, "grid": [n]}) for n in (2, 1))
    found.figure("digits on 2 ranks, test accuracy", two.test_accuracy or 0.0, beside={"1 rank": one.test_accuracy})
    check_close("test accuracy on 2 ranks", two.test_accuracy, one.test_accuracy, jobs.APART)


def network(backend: Backend, side: int) -> Network:
    """The network for images of three channels."""
    return build_network(LAYERS, "softmax_cross_entropy", features=(side, side, 3), outputs=10, backend=backend)


def on_device(backend: Backend, samples: Batch) -> Batch:
    """The same samples on this thread's device."""
    return Batch(backend.to_device(samples.inputs), backend.to_device(samples.targets))


def alone(backend: Backend, tensors: Tensors, samples: Batch, rounds: int) -> tuple[float, Tensors]:
    """Median seconds of a step of the whole network, after one that is not counted, and its gradient on the host."""
    model, batch = network(backend, samples.inputs.shape[1]), on_device(backend, samples)
    views = {name: backend.to_device(values) for name, values in tensors.items()}
    out = {name: backend.xp.empty_like(values) for name, values in views.items()}

    def step() -> None:
        model.loss_and_gradient(views, batch, out)
        backend.xp.cuda.get_current_stream().synchronize()

    times = [timing.seconds(step) for _ in range(1 + rounds)][1:]
    return statistics.median(times), {name: backend.to_host(values) for name, values in out.items()}


def together(
    grid: Grid, backend: Backend, tensors: Tensors, whole: Tensors, samples: Batch, rounds: int
) -> tuple[float, float]:
    """Median over the steps of the slowest rank's seconds, and how far a gradient is at most from the whole's."""

    def rank(comm: Communicator) -> tuple[list[float], float]:
        backend.bind_device(comm.rank)
        cut = build_partitioned(network(backend, samples.inputs.shape[1]), comm, grid)
        part, batch = cut.layout.part(comm.rank), on_device(backend, samples)
        own = backend.to_device(part.flatten(tensors, np.empty(part.size, np.float32)))
        gradient = backend.xp.empty(part.size, np.float32)

        def step() -> None:
            cut.loss_and_gradient(part.views(own), batch, part.views(gradient))
            backend.xp.cuda.get_current_stream().synchronize()

        times = [timing.seconds(step) for _ in range(1 + rounds)][1:]
        wanted = part.flatten(whole, np.empty(part.size, np.float32))
        return times, float(np.abs(backend.to_host(gradient) - wanted).max(initial=0.0))

    found = run_ranks(grid.size, rank, xp=backend.xp)
    largest = max(float(np.abs(values).max()) for values in whole.values())
    slowest = [max(times) for times in zip(*(times for times, _ in found), strict=True)]
    return statistics.median(slowest), max(apart for _, apart in found) / largest
