"""What `sync.step` of a PyTorch script costs, beside the fetch and push of as many parameters by a job's own model.

    python -m benchmarks.workers.script_step [--rounds 5] [--parameters 100000 1000000 10000000] [--steps 300]
                                             [--device cuda]

One replica and one shard, which share memory; Downpour with Adagrad. Both ways take their turn in every round. The
model's time is that of the phases "fetch" and "push" of its worker, for each step; the script's is that of `sync.step`
alone, without what its loop computes. Its first step, which seeks the loss scalers of the process, is a column of its
own, and so is the plain step: `optimizer.step()` and `zero_grad()` of the same optimiser and parameters, without a job.
With `--device cuda` the script's parameters are on a GPU; every step is timed until the device has completed it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from benchmarks.harness import options, report, runs
from benchmarks.harness.extras import needs_torch

JOB = """
name: step
model: {model}
data: {data}
strategy: {{name: downpour, batch: 1, rule: {{name: adagrad, rate: 0.01, eps: 1.0e-10}}, warm_start: null}}
limits: {{samples: {steps}}}
evaluate: {{every: 1000000000}}
snapshots: {{every_s: null}}
"""
MODEL = """
import numpy as np


class Model:
    def parameters(self, rng):
        return {{"w": np.zeros({parameters}, np.float32)}}

    def loss_and_gradient(self, views, batch, out):
        out["w"].fill(0.001)
        return 1.0


model = Model()
"""
SCRIPT = """
import json
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import dbelief

torch.set_num_threads(1)
settle = torch.cuda.synchronize if "{device}" == "cuda" else lambda: None


def weights():
    return torch.nn.Parameter(torch.zeros({parameters}, device="{device}"))


def seconds(w, step):
    w.grad.fill_(0.001)
    settle()
    began_s = time.perf_counter()
    step()
    settle()
    return time.perf_counter() - began_s


w = weights()
module = torch.nn.Module()
module.register_parameter("w", w)
dataset = TensorDataset(torch.zeros({steps}, 1))
steps_s = []
with dbelief.join() as job:
    sync = dbelief.torch.Sync(job, module, torch.optim.Adagrad([w], lr=0.01))
    for _ in DataLoader(dataset, batch_sampler=job.sampler(dataset, 1)):
        steps_s.append(seconds(w, lambda: sync.step(1.0, samples=1)))

alone = weights()
alone.grad = torch.zeros_like(alone)
optimizer = torch.optim.Adagrad([alone], lr=0.01)


def plain():
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


plain_s = [seconds(alone, plain) for _ in steps_s]
means = [sum(taken[1:]) / (len(taken) - 1) for taken in (steps_s, plain_s)]
with open("spent.json", "w") as file:
    json.dump([steps_s[0], *means], file)
"""


class Times(NamedTuple):
    """Seconds of `sync.step` at the first step of a script, and at each of the others; and of a plain step."""

    first_s: float
    step_s: float
    plain_s: float


def by_model(folder: Path, parameters: int, steps: int) -> float:
    """Seconds of fetch and push for a step of the job's own model."""
    (folder / "model.py").write_text(MODEL.format(parameters=parameters))
    data = f"{{source: synthetic, kind: regression, samples: {2 * steps}, features: 1, noise: 0.1}}"
    (folder / "job.yaml").write_text(JOB.format(model='{python: "model.py:model"}', data=data, steps=steps))
    runs.dbelief(folder, "train", "--quiet", "job.yaml")
    summary = json.loads((folder / "runs/step/summary.json").read_text())
    phases = summary["phase_seconds"]["0"]
    return float(phases["fetch"] + phases["push"]) / steps


def by_script(folder: Path, parameters: int, steps: int, device: str) -> Times:
    """Times of a script whose parameters are on a device of torch, "cpu" or "cuda"."""
    (folder / "script.py").write_text(SCRIPT.format(parameters=parameters, steps=steps, device=device))
    data = f"{{source: script, train: {steps}}}"
    (folder / "job.yaml").write_text(JOB.format(model="{source: script}", data=data, steps=steps))
    runs.dbelief(folder, "run", "--quiet", "--job", "job.yaml", "script.py")
    return Times(*json.loads((folder / "spent.json").read_text()))


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    words = parser.parse_args()
    needs_torch()
    rows = []
    table = Table(
        "parameters", "model ms", "script ms", "script / model", "of the rounds", "first step, ms", "plain step, ms"
    )
    for parameters in words.parameters:
        rounds = []
        for _ in range(words.rounds):
            with tempfile.TemporaryDirectory() as folder:
                model = by_model(Path(folder), parameters, words.steps)
                rounds.append((model, *by_script(Path(folder), parameters, words.steps, words.device)))
        ratios = sorted(script / model for model, _, script, _ in rounds)
        medians_s = [statistics.median(times) for times in zip(*rounds, strict=True)]
        rows.append(
            {
                "parameters": parameters,
                "rounds": rounds,
                **dict(zip(("model_s", "first_s", "script_s", "plain_s"), medians_s, strict=True)),
                "ratio": statistics.median(ratios),
                "least": ratios[0],
                "most": ratios[-1],
            }
        )
        report.progress(rows[-1])
        own, first, other, plain = (f"{1_000 * seconds:.3f}" for seconds in medians_s)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        table.add_row(f"{parameters:,}", own, other, f"{statistics.median(ratios):.2f}", spread, first, plain)
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
