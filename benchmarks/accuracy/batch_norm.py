"""BatchNorm under Downpour: the exported model of several asynchronous replicas, beside one plain process.

    DBELIEF_DATA=... python -m benchmarks.accuracy.batch_norm [--replicas 4] [--seeds 0,1,2]

The script is `examples/scripts/mnist_cnn_job.py`. The exported model is evaluated on the test set sample by sample, in
batches, and in batches of one class; then its running statistics are computed anew, over the training set, and it is
evaluated again. Plain: the same script in one process, with the same samples.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

import dbelief
from benchmarks.accuracy.scripts import JOBS, SCRIPTS, job_command, job_fields, plain, source_of
from benchmarks.harness import options, report, runs
from benchmarks.harness.extras import needs_torch

NAME = "mnist_cnn"


def exported(seed: int, replicas: int, source: str) -> dict[str, float]:
    """Accuracies of the model that a job exports."""
    with tempfile.TemporaryDirectory() as folder:
        runs.dbelief(folder, *job_command(folder, NAME, job_fields(NAME, seed, replicas, False), source))
        return evaluated(Path(folder) / "runs/script", source)


def evaluated(run: Path, source: str) -> dict[str, float]:
    """Accuracies of a run's model, by the way of evaluation."""
    import torch

    script = loaded(source)
    model = dbelief.load_model(run, into=script.network()).eval()
    train, test = script.images("train", JOBS[NAME]["train"]), script.images("t10k", 10_000)
    x, y = test.tensors
    order = y.argsort(stable=True)

    def accuracy(images: Any, labels: Any, batch: int) -> float:
        with torch.no_grad():
            right = [
                (model(a).argmax(1) == b).sum() for a, b in zip(images.split(batch), labels.split(batch), strict=True)
            ]
        return float(sum(right)) / len(labels)

    found = {
        "one by one": accuracy(x[:2_000], y[:2_000], 1),
        "the same in batches": accuracy(x[:2_000], y[:2_000], 100),
        "in batches": accuracy(x, y, 500),
        "by class": accuracy(x[order], y[order], 500),
    }
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
            layer.train()
    with torch.no_grad():
        for images in train.tensors[0].split(500):
            model(images)
    model.eval()
    return {**found, "recomputed": accuracy(x, y, 500)}


def loaded(source: str) -> Any:
    """The plain script as a module."""
    arguments, sys.argv = sys.argv, ["mnist_cnn.py", source]
    spec = importlib.util.spec_from_file_location("mnist_cnn", SCRIPTS / f"{NAME}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.argv = arguments
    return module


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=options.numbers, default=[0, 1, 2])
    arguments = parser.parse_args()
    needs_torch()
    source, rows = source_of(NAME), []
    for seed in arguments.seeds:
        rows.append({"seed": seed, "plain": plain(NAME, seed, 1, source)["accuracy"]})
        rows[-1] |= exported(seed, arguments.replicas, source)
        report.progress(rows[-1])
    ways = [way for way in rows[0] if way != "seed"]
    means = {way: statistics.mean(row[way] for row in rows) for way in ways}
    table = Table(*ways)
    table.add_row(*(f"{100 * mean:.2f} %" for mean in means.values()))
    report.show(table, {"means": means, "rows": rows, "replicas": arguments.replicas})


if __name__ == "__main__":
    main()
