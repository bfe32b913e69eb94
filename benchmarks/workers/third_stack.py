"""One update of the third stack of the 11.2 G network (Coates et al. 2013, section 5.1: under 0.6 s on 64 GPUs).

    python -m benchmarks.workers.third_stack [--side 132 --window 32 --maps 18 --batch 96] [--device cuda]

Loss, gradient and a momentum step of 3,588,489,216 weights, on 96 images of 132 x 132 x 18 drawn at random: 43 GB of
weights, gradient and velocity. It needs a CUDA device with room for that; smaller numbers run anywhere, and are then
another layer's. Beside the median stands what the paper's count of operations, ten for each weight and image, makes of
it.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, timing
from dbelief.arrays.backend import Backend, select_backend
from dbelief.nn import Batch, SparseAutoencoder
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.optim import make_rule
from dbelief.process.terminal.console import cli_errors
from dbelief.tools.bench.kernels import device_name


def drawn(backend: Backend, shape: tuple[int, ...]) -> Any:
    """Normal float32 numbers, made where they are used: the whole of them once more would not fit on a host."""
    if backend.name == "numpy":
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return backend.xp.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def update(model: SparseAutoencoder, batch: int, rounds: int, backend: Backend) -> list[float]:
    """Seconds of each of so many updates, after one that is not counted."""
    xp, rule = backend.xp, make_rule("momentum", {})
    weight = drawn(backend, model.blocks.w_shape)
    weight *= np.float32(1 / math.sqrt(model.blocks.fan_in))
    views = {"weight": weight, "alpha": xp.full(1, 0.1, np.float32)}
    out = {name: xp.empty_like(values) for name, values in views.items()}
    velocity = {name: xp.zeros_like(values) for name, values in views.items()}
    images = drawn(backend, (batch, *model.image))
    samples = Batch(images, np.zeros(batch, np.int64))

    def step() -> None:
        loss = model.loss_and_gradient(views, samples, out)
        for name, values in views.items():
            rule.apply_reference(xp, values, out[name], (velocity[name],), np.float32(1e-6), 1)
        if backend.name == "cupy":
            xp.cuda.get_current_stream().synchronize()
        assert math.isfinite(loss), "an update that trains"

    return [timing.seconds(step) for _ in range(rounds + 1)][1:]


SIZES = {"side": 132, "window": 32, "maps": 18, "batch": 96, "rounds": 5}
"""Those of the third stack, and how often it is updated."""


def measure(side: int, window: int, maps: int, batch: int, rounds: int, backend: Backend) -> dict[str, Any]:
    """Time updates of the layer of such a size; the figures."""
    model = SparseAutoencoder((side, side, maps), Eq1(window=window, maps=maps), backend)
    weights = math.prod(model.blocks.w_shape)
    times = update(model, batch, rounds, backend)
    median_s, operations = statistics.median(times), 10 * weights * batch
    return {
        "device": device_name(backend),
        "weights": weights,
        "batch": batch,
        "median_s": median_s,
        "seconds": times,
        "operations": operations,
        "operations_per_s": operations / median_s,
    }


def main() -> None:
    parser = options.new_parser(__doc__)
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    sizes = {name: getattr(arguments, name) for name in SIZES}
    row = measure(**sizes, backend=select_backend(arguments.device))
    table = Table("device", "weights", "batch", "median s", "Tflop/s", title="One update")
    tera = f"{row['operations_per_s'] / 1e12:.3g}"
    table.add_row(row["device"], f"{row['weights']:,}", str(row["batch"]), f"{row['median_s']:.3g}", tera)
    report.show(table, row)


if __name__ == "__main__":
    with cli_errors():
        main()
