"""Errors of layers against torch and difference quotients, and of networks on grids of ranks against one rank.

    python -m benchmarks.accuracy.layers [--networks 100]

Torch's numbers are those of tests/golden/torch_layers.npz, for each layer but image and dropout. Networks are drawn at
random, of layers of images and dense ones, and cut over each grid of 1 x 1 to 3 x 3 ranks, on threads. All errors are
the largest found, relative to the largest number of the array in question; of difference quotients (float64, along
random directions) to the sum of the terms of the inner product.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import checkout, options, report
from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Batch, build_network
from dbelief.nn.build import LAYERS
from dbelief.nn.workspace import Workspace
from dbelief.partition import Grid
from dbelief.worker.comm import Communicator, run_ranks
from dbelief.worker.partition.network import PartitionedNetwork

GOLDEN = checkout.ROOT / "tests" / "golden" / "torch_layers.npz"
CLASSES = 3
STEP = 1e-6
Layers = list[tuple[str, dict[str, Any]]]


def far(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest number."""
    return float(abs(found - expected).max() / (abs(expected).max() or 1.0))


def one_layer(golden: dict[str, np.ndarray], case: str) -> tuple[str, float, float]:
    """A layer's kind, and how far it is from torch and from difference quotients."""
    about = json.loads(str(golden[f"about.{case}"]))
    layer, work = LAYERS[about["kind"]](**about["options"]), Workspace(select_backend("cpu"))
    x, y, dy = (np.ascontiguousarray(golden[f"{name}.{case}"]) for name in ("x", "y", "dy"))
    count = len(layer.tensors)
    points, expected = ([golden[f"{name}{i}.{case}"] for i in range(count)] for name in "pd")
    if f"dx.{case}" in golden:  # whole numbers have no gradient
        points, expected = [*points, x], [*expected, golden[f"dx.{case}"]]
    found, gradients = np.empty_like(y), [np.empty_like(point) for point in points]

    def value(moved: list[np.ndarray]) -> float:
        layer.forward(work, moved[count] if len(moved) > count else x, moved[:count], found)
        return float(np.vdot(dy, found))

    value(points)
    errors = [far(found, y)]
    dx = gradients[count] if len(gradients) > count else None
    layer.backward(work, x, found, dy, points[:count], gradients[:count], dx)
    errors += [far(gradient, number) for gradient, number in zip(gradients, expected, strict=True)]

    rng, quotients = np.random.default_rng(0), []
    for _ in range(5):
        along = [rng.standard_normal(point.shape) for point in points]
        up, down = (value([p + sign * STEP * v for p, v in zip(points, along, strict=True)]) for sign in (1, -1))
        slope = sum(float(np.vdot(g, v)) for g, v in zip(gradients, along, strict=True))
        size = sum(float(np.vdot(abs(g), abs(v))) for g, v in zip(gradients, along, strict=True))
        quotients.append(abs((up - down) / (2 * STEP) - slope) / size)
    return about["kind"], max(errors), max(quotients)


def drawn(rng: np.random.Generator) -> tuple[Layers, tuple[int, int, int]]:
    """Two to five layers of images and a dense one, and images that they fit; most are neither square nor even."""
    while True:
        shape = int(rng.integers(8, 19)), int(rng.integers(8, 19)), int(rng.integers(1, 4))
        stride, tiles = (int(n) for n in rng.integers(1, 4, 2))
        choices: Layers = [
            ("conv", {"maps": 3, "kernel": int(rng.integers(1, 5)), "stride": int(rng.integers(1, 3))}),
            ("local", {"window": tiles * stride, "block": int(rng.integers(1, 4)), "maps": 2, "stride": stride}),
            ("max_pool", {"size": 2}),
            ("average_pool", {"size": 3, "stride": 2}),
            ("l2_pool", {"size": 3}),
            ("lcn", {"size": 3}),
            ("tanh", {}),
        ]
        layers = [choices[place] for place in rng.integers(0, len(choices), rng.integers(2, 6))]
        layers += [("dense", {"units": int(rng.integers(1, 9))}), ("sigmoid", {}), ("dense", {"units": CLASSES})]
        try:
            network(layers, shape)
        except ModelError:
            continue
        return layers, shape


def network(layers: Layers, shape: tuple[int, int, int]) -> Any:
    """The network as it is on one rank."""
    return build_network(
        layers, "softmax_cross_entropy", features=shape, outputs=CLASSES, backend=select_backend("cpu")
    )


def on_a_grid(layers: Layers, shape: tuple[int, int, int], grid: Grid, dtype: Any) -> tuple[float, float]:
    """How far loss and gradients are from those of one rank."""
    rng, whole = np.random.default_rng(0), network(layers, shape)
    batch = Batch(rng.standard_normal((4, *shape)).astype(dtype), rng.integers(0, CLASSES, 4))
    tensors = {name: values.astype(dtype) for name, values in whole.parameters(rng).items()}
    expected = {name: np.empty_like(values) for name, values in tensors.items()}
    loss = whole.loss_and_gradient(tensors, batch, expected)

    def rank(comm: Communicator) -> tuple[float, float]:
        cut = PartitionedNetwork(network(layers, shape), comm, grid)
        boxes = [box for box in cut.layout.boxes if box.rank == comm.rank]
        views = {box.name: np.ascontiguousarray(tensors[box.name][box.index]) for box in boxes}
        found = {name: np.empty_like(values) for name, values in views.items()}
        off = abs(cut.loss_and_gradient(views, batch, found) - loss) / loss
        size = {box.name: float(abs(expected[box.name]).max()) or 1.0 for box in boxes}
        gaps = [float(abs(found[b.name] - expected[b.name][b.index]).max()) / size[b.name] for b in boxes]
        return off, max(gaps, default=0.0)

    ranks = run_ranks(grid.size, rank)
    return max(off for off, _ in ranks), max(gap for _, gap in ranks)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--networks", type=int, default=100)
    count = parser.parse_args().networks

    with np.load(GOLDEN) as file:
        golden = dict(file)
    cases = [name.partition(".")[2] for name in golden if name.startswith("about.")]
    layers: list[dict[str, Any]] = [
        dict(zip(("kind", "torch", "quotients"), one_layer(golden, case), strict=True)) for case in cases
    ]
    rng = np.random.default_rng(1)
    networks = [drawn(rng) for _ in range(count)]
    grids = [Grid(rows, columns) for rows in (1, 2, 3) for columns in (1, 2, 3)]
    results: list[dict[str, Any]] = [
        {"what": "outputs and gradients = torch's", "float64": max(row["torch"] for row in layers)},
        {"what": "gradients = difference quotients", "float64": max(row["quotients"] for row in layers)},
        {"what": "loss on a grid = one rank's"},
        {"what": "gradients on a grid = one rank's"},
    ]
    for dtype in (np.float64, np.float32):
        errors = [on_a_grid(*one, grid, dtype) for one in networks for grid in grids]
        for row, error in zip(results[2:], zip(*errors, strict=True), strict=True):
            row[np.dtype(dtype).name] = max(error)

    table = Table(f"largest errors, {len(cases)} layers, {count} networks on {len(grids)} grids", "float64", "float32")
    for row in results:
        table.add_row(row["what"], *(f"{row[name]:.1e}" if name in row else "" for name in ("float64", "float32")))
    report.show(table, {"networks": count, "results": results, "layers": layers})


if __name__ == "__main__":
    main()
