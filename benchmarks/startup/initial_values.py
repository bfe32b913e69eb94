"""Initial values of a large model: from the start of the workers until the shards have all of them.

    python -m benchmarks.startup.initial_values [--millions 500] [--workers 1 2] [--runs 3] [--kind layers]

A coordinator and two shards run; then the workers are started. The shards have all values when the coordinator begins
the first snapshot set, whose folder appears. Processor time, user and system, is that of the members until then; peak
memory is the workers' VmHWM, of the worker that needs most. A model of some thousand parameters shows what the
processes need besides. Medians over the runs.

    layers           dense layers, drawn uniformly
    autoencoder      one block-local layer, drawn from a Gaussian
    python           a model of the user's that is drawn as the layers are
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, runs

SHARDS = 2
FEATURES, HIDDEN, CLASSES = 10_000, 25_000, 10
DEADLINE_S = 300.0
SMALL = 0
FIGURES = ("took_s", "workers_cpu_s", "shards_cpu_s", "peak_mib")
PYTHON = """
import numpy as np

class Drawn:
    def parameters(self, rng):
        values = {}
        for name, shape in SHAPES.items():
            values[name] = rng.random(shape, dtype=np.float32)
            values[name] *= 0.02
            values[name] -= 0.01
        return values

    def loss_and_gradient(self, views, batch, out):
        for gradient in out.values():
            gradient[...] = 0
        return 0.0
"""


def model_of(kind: str, millions: int, run: runs.Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model and data of a job with about so many million parameters; `SMALL`: some thousand."""
    classes = {"source": "synthetic", "kind": "classes", "samples": 100, "classes": CLASSES, "noise": 0.1}
    features = FEATURES if millions else 16
    hidden = HIDDEN if millions else 64
    # hidden * (features + second) = all
    second = max(1_000_000 * millions // hidden - features, 16)
    if kind == "layers":
        layers = [{"dense": hidden}, "relu", {"dense": second}, "relu", {"dense": CLASSES}]
        return {"layers": layers, "loss": "softmax_cross_entropy"}, {**classes, "features": features}
    if kind == "python":
        shapes = {"first": (features, hidden), "second": (hidden, second)}
        (run.folder / "model.py").write_text(PYTHON.replace("SHAPES", repr(shapes)))
        return {"python": "model.py:Drawn"}, {**classes, "features": features}
    side = 128 if millions else 32  # (side / 4)^2 blocks of 16 maps neurons, each with 16 * 16 weights
    maps = max(1_000_000 * millions // ((side // 4 - 3) ** 2 * 16 * 256), 1)
    layer = {"window": 16, "block": 4, "maps": maps, "pool": 5, "image": [side, side, 1]}
    return {"autoencoder": layer}, {**classes, "features": side * side}


def measure(kind: str, millions: int, workers: int) -> tuple[float, float, float, float]:
    """Seconds, processor time of the workers and of the shards, and peak memory of a worker in MiB."""
    with runs.temporary_run("initial") as run:
        model, data = model_of(kind, millions, run)
        job: dict[str, Any] = {
            "name": run.run.name,
            "model": model,
            "data": data,
            "strategy": {"name": "downpour", "batch": 8, "rule": {"name": "sgd", "rate": 0.01}, "warm_start": None},
            "evaluate": {"every": None},
            "limits": {"samples": 1_000_000_000},
            "shards": SHARDS,
            "replicas": workers,
        }
        _, address = run.coordinator(job, DEADLINE_S)
        shards = [run.start(f"ps-{number}", ["ps", *address]) for number in range(SHARDS)]
        time.sleep(2.0)  # they have joined, and wait
        before = runs.processor_s(shards)
        began_s = time.monotonic()
        members = [run.start(f"worker-{number}", ["worker", *address]) for number in range(workers)]

        def begun() -> bool | None:
            """Whether the first set is begun; None: not yet."""
            if any(member.poll() is not None for member in members):
                raise SystemExit("\n".join(run.output("worker-0")))
            return any((run.run / "snapshots").glob("*")) or None

        runs.wait_for(begun, "the first set", DEADLINE_S)
        took_s = time.monotonic() - began_s
        peak = max(runs.status_kib(member.pid, "VmHWM") for member in members) / 1024
        return took_s, runs.processor_s(members), runs.processor_s(shards) - before, peak


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--millions", type=int, default=500, help="parameters, in millions")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kind", choices=["layers", "autoencoder", "python"], default="layers")
    arguments = parser.parse_args()
    table = Table("parameters", "workers", "seconds", "workers, cpu s", "shards, cpu s", "peak of a worker, MiB")
    rows = []
    for workers in arguments.workers:
        for millions in (SMALL, arguments.millions):
            found = [measure(arguments.kind, millions, workers) for _ in range(arguments.runs)]
            middle = [statistics.median(column) for column in zip(*found, strict=True)]
            medians = dict(zip(FIGURES, middle, strict=True))
            rows.append({"millions": millions, "workers": workers, **medians, "runs": found})
            table.add_row(f"{millions} M" if millions else "few", str(workers), *(f"{one:.1f}" for one in middle))
    report.show(table, {"cores": os.cpu_count(), "kind": arguments.kind, "rows": rows})


if __name__ == "__main__":
    main()
