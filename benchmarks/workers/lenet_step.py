"""One step of LeNet on one core, layer by layer, and torch's beside it where torch is installed; in processor time.

    python -m benchmarks.workers.lenet_step [--steps 200]

Images of 28 x 28 pixels, a mini-batch of 32: loss and gradient of conv 20 @ 5, max pool 2, conv 50 @ 5, max pool 2,
dense 500, relu, dense 10. Steps of both take turns. Processor time bears neighbours better than time on the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.harness import options, report, timing
from dbelief.arrays.backend import select_backend
from dbelief.nn import Batch, Conv, Dense, Image, Network
from dbelief.nn.layers.layer import ReLU
from dbelief.nn.layers.pooling import MaxPool
from dbelief.nn.losses import SoftmaxCrossEntropy

LAYERS = (Image(28, 28), Conv(20, 5), MaxPool(2), Conv(50, 5), MaxPool(2), Dense(500), ReLU(), Dense(10))
BATCH = 32


class Timed:
    """A layer that records the seconds of each call."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.took: dict[str, list[float]] = {"forward": [], "backward": []}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._layer, name)
        if name not in self.took:
            return found

        def timed(*arguments: Any) -> None:
            self.took[name].append(timing.seconds(lambda: found(*arguments), time.process_time))

        return timed


def torch_step(inputs: np.ndarray, targets: np.ndarray) -> Callable[[], object] | None:
    """The same by torch, on one thread; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    nn = torch.nn
    convolutions = (nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2))
    module = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))
    images, classes = torch.from_numpy(inputs.reshape(-1, 1, 28, 28)), torch.from_numpy(targets)

    def step() -> None:
        module.zero_grad()
        nn.functional.cross_entropy(module(images), classes).backward()

    return step


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    rng = np.random.default_rng(0)
    batch = Batch(rng.random((BATCH, 784), np.float32), rng.integers(0, 10, BATCH))
    timed = [Timed(layer) for layer in LAYERS]
    network = Network(timed, SoftmaxCrossEntropy(), 784, 10, select_backend("cpu"))
    views = network.parameters(rng)
    out = {name: np.empty_like(values) for name, values in views.items()}
    other = torch_step(batch.inputs, batch.targets)
    ours, theirs = [], []
    for _ in range(steps):
        ours.append(timing.seconds(lambda: network.loss_and_gradient(views, batch, out), time.process_time))
        if other is not None:
            theirs.append(timing.seconds(other, time.process_time))
    table = Table("stage", "forward ms", "backward ms", title=f"LeNet, {steps} steps")
    for stage, layer in zip(network.stages, timed, strict=True):
        table.add_row(stage.name, *(f"{1e3 * np.median(took):.2f}" if took else "" for took in layer.took.values()))
    report.show(table, {"steps": steps, "batch": BATCH, **figures(ours, theirs)})


def figures(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Medians in milliseconds; with torch's, the median over the pairs of this one's time over torch's."""
    found: dict[str, Any] = {"step_ms": 1e3 * float(np.median(ours)), "least_ms": 1e3 * min(ours)}
    if theirs:
        ratio = float(np.median([one / two for one, two in zip(ours, theirs, strict=True)]))
        found |= {"torch_ms": 1e3 * float(np.median(theirs)), "over_torch": ratio}
    return found


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
