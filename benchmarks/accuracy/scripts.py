"""PyTorch scripts as replicas of a job, beside the same script in one plain process with the same samples.

    DBELIEF_DATA=... python -m benchmarks.accuracy.scripts [--scripts mnist_cnn,...] [--seeds 0,1,2] [--ways plain,...]

The scripts are those of `examples/scripts`. The plain way runs the job's script too, with stand-ins for the two names
of dbelief: the sampler gives the job's order, and a step is the optimiser's own. The learning rate falls linearly to 0
in all ways. Ways: plain, and plain with a step after every two batches, whose gradients are averaged; synchronous SGD
by two replicas, which is compared with the latter; asynchronous by 1, 2 and 4. The figures are loss and accuracy that
the script's `score` gives on the test set, of the result.
"""

from __future__ import annotations

import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, options, report, runs
from benchmarks.harness.extras import needs_torch

SCRIPTS = checkout.EXAMPLES / "scripts"
JOBS: dict[str, dict[str, Any]] = {
    "mnist_cnn": {"train": 60_000, "batch": 64, "epochs": 5, "rule": {"name": "sgd", "rate": 0.05}},
    "mnist_resnet": {"train": 8_000, "batch": 32, "epochs": 3, "rule": {"name": "sgd", "rate": 0.05}},
    "char_gpt": {
        "train": 3_000,
        "batch": 4,
        "epochs": 1,
        "rule": {"name": "adamw", "rate": 0.0005, "beta1": 0.5, "beta2": 0.95, "weight_decay": 0.1},
        "warm_start": {"samples": 600},
    },
}
SYNCHRONOUS, ASYNCHRONOUS = 2, (1, 2, 4)
Figures = dict[str, float]
"""By name: loss and accuracy."""
PLAIN = "benchmarks.accuracy.scripts"


def plain_run(script: str, numbers: list[str], words: list[str]) -> None:
    """Run a script of a job as a plain program, which prints its score as JSON.

    `numbers`: seed, batches of a step, and samples until the learning rate is 0.
    """
    seed, batches, total = map(int, numbers)
    import numpy as np

    import dbelief
    from dbelief.data import permutation

    class Sampler:
        def __init__(self, size: int, batch: int) -> None:
            self.size, self.batch, self.epoch = size, batch, 0

        def __len__(self) -> int:
            return -(-self.size // self.batch)

        def __iter__(self) -> Iterator[list[int]]:
            order: np.ndarray = permutation(self.size, seed, self.epoch)
            self.epoch += 1
            for first in range(0, self.size, self.batch):
                yield order[first : first + self.batch].tolist()

    class Job:
        def sampler(self, dataset: Any, batch_size: int) -> Sampler:
            return Sampler(len(dataset), batch_size)

        def __enter__(self) -> Job:
            return self

        def __exit__(self, *raised: object) -> None:
            return

    class Sync:
        def __init__(self, job: Job, model: Any, optimizer: Any) -> None:
            self.model, self.optimizer, self.samples, self.calls = model, optimizer, 0, 0
            self.rates = [group["lr"] for group in optimizer.param_groups]

        def step(self, loss: Any, samples: int) -> None:
            self.calls += 1
            self.samples += samples
            if self.calls % batches and self.samples < total:
                return
            before = max(0, self.samples - batches * samples)
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * (1 - before / total)
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad /= batches
            self.optimizer.step()
            self.optimizer.zero_grad()

        def evaluate(self, score: Any, data: Any) -> Any:
            found = score(self.model, data)
            print(json.dumps(found))
            return found

    import dbelief.torch

    vars(dbelief)["join"], vars(dbelief.torch)["Sync"] = Job, Sync
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


def source_of(name: str) -> str:
    """Where a script's data is: the folder of MNIST, or the text."""
    data = Path(os.environ["DBELIEF_DATA"])
    return str((data / "shakespeare" / "input.txt" if name == "char_gpt" else data / "mnist").resolve())


def plain(name: str, seed: int, batches: int, source: str) -> Figures:
    """Figures of the plain program."""
    epochs = JOBS[name]["epochs"]
    numbers = [str(seed), str(batches), str(epochs * JOBS[name]["train"])]
    command = [sys.executable, "-m", PLAIN, "--plain", str(SCRIPTS / f"{name}_job.py"), *numbers]
    command += [source, str(seed), str(epochs)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=checkout.ROOT)
    loss, accuracy = json.loads(ended.stdout.splitlines()[0])
    return {"loss": loss, "accuracy": accuracy}


def job_fields(name: str, seed: int, replicas: int, synchronous: bool) -> dict[str, Any]:
    """The job file of a script."""
    spec = JOBS[name]
    strategy = {"name": "downpour", "batch": spec["batch"], "rule": spec["rule"]}
    strategy |= {"warm_start": spec["warm_start"]} if "warm_start" in spec else {}
    if synchronous:
        strategy = {"name": "sync-sgd", "form": "shards", "batch": spec["batch"], "rule": spec["rule"]}
    return {
        "name": "script",
        "model": {"source": "script"},
        "data": {"source": "script", "train": spec["train"], "validation": 1},
        "strategy": strategy,
        "limits": {"epochs": spec["epochs"]},
        "schedule": {"kind": "poly", "power": 1.0},
        "evaluate": {"every": 10**9},
        "snapshots": {"every_s": None},
        "replicas": replicas,
        "seed": seed,
    }


def job(name: str, seed: int, replicas: int, synchronous: bool, source: str) -> Figures:
    """Figures of a job of the script."""
    with tempfile.TemporaryDirectory() as folder:
        runs.dbelief(folder, *job_command(folder, name, job_fields(name, seed, replicas, synchronous), source))
        summary = json.loads((Path(folder) / "runs/script/summary.json").read_text())
    return figures_of(summary)


def job_command(folder: Path | str, name: str, fields: dict[str, Any], source: str) -> list[str]:
    """Arguments of `dbelief` for a job of the script, whose file is written into this folder."""
    (Path(folder) / "job.yaml").write_text(json.dumps(fields))
    script = [str(SCRIPTS / f"{name}_job.py"), source, str(fields["seed"]), str(JOBS[name]["epochs"])]
    return ["run", "--quiet", "--job", "job.yaml", *script]


def _asynchronous(replicas: int, name: str, seed: int, source: str) -> Figures:
    return job(name, seed, replicas, False, source)


def figures_of(summary: dict[str, Any]) -> Figures:
    """Figures of a run's summary."""
    return {"loss": summary["validation_loss"], "accuracy": summary["validation_accuracy"]}


WAYS: dict[str, Callable[[str, int, str], Figures]] = {
    "plain": lambda name, seed, source: plain(name, seed, 1, source),
    f"plain by {SYNCHRONOUS}": lambda name, seed, source: plain(name, seed, SYNCHRONOUS, source),
    f"synchronous {SYNCHRONOUS}": lambda name, seed, source: job(name, seed, SYNCHRONOUS, True, source),
    **{f"asynchronous {replicas}": partial(_asynchronous, replicas) for replicas in ASYNCHRONOUS},
}


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--scripts", type=options.words, default=list(JOBS))
    parser.add_argument("--seeds", type=options.numbers, default=[0, 1, 2])
    parser.add_argument("--ways", type=options.words, default=list(WAYS))
    arguments = parser.parse_args()
    needs_torch()
    rows, ways = [], arguments.ways
    if unknown := set(ways) - WAYS.keys():
        parser.error(f"no way is called {min(unknown)!r}, only {', '.join(WAYS)}")
    for name in arguments.scripts:
        source = source_of(name)
        for seed in arguments.seeds:
            rows.append({"script": name, "seed": seed, **{way: WAYS[way](name, seed, source) for way in ways}})
            report.progress(rows[-1])
    table, means = Table("script", "mean", *ways), []
    for name in arguments.scripts:
        mine = [row for row in rows if row["script"] == name]
        for figure in ("accuracy", "loss"):
            found = {way: statistics.mean(row[way][figure] for row in mine) for way in ways}
            means.append({"script": name, "figure": figure, **found})
            table.add_row(name, figure, *(f"{mean:.4f}" for mean in found.values()))
    report.show(table, {"means": means, "rows": rows})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain"]:
        plain_run(sys.argv[2], sys.argv[3:6], sys.argv[6:])
    else:
        main()
