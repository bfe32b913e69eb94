"""DiLoCo's quality: a character GPT by four learners that exchange every H steps, beside DDP and one learner alone.

    DBELIEF_DATA=... python -m benchmarks.accuracy.diloco [--seeds 0] [--ways ddp,alone,simulated-8,job-8] [--steps 488]
        [--rate 0.001]

The GPT is that of `examples/scripts/char_gpt.py` (4 layers of 128, context 128) on tiny Shakespeare: AdamW at a
constant rate, mini-batches of 8 windows, outer Nesterov at 0.7 with mu 0.6. Ways, each with the same windows in the
same order:

    ddp            one process, mini-batches of 32: the steps of four synchronous ranks
    alone          one learner in the same time: as many steps, of 8
    simulated-H    the algorithm for four learners in one process, with torch's SGD as the outer rule
    job-H          a job with four replicas, each a process

The figures are of the windows behind the training text, of the parameters at the end.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.accuracy.scripts import Figures, figures_of, source_of
from benchmarks.harness import options, report, runs
from benchmarks.harness.extras import needs_torch

SCRIPT = str(Path(__file__).with_name("diloco_script.py"))
TRAIN, BATCH, LEARNERS = 7_808, 8, 4
ROUNDS = (8, 32, 128)
PATIENCE_S = 600.0
"""More than a long round takes on a busy machine."""
STEPS = 488
"""Two epochs."""


class Setting(NamedTuple):
    """What all ways of a run have: the text's path, seed, steps of a learner, and rate of AdamW."""

    source: str
    seed: int
    steps: int
    rate: float

    @property
    def words(self) -> list[str]:
        """First words of the script."""
        return [self.source, str(self.seed), str(TRAIN), str(self.rate)]


def job_fields(setting: Setting, inner_steps: int) -> dict[str, Any]:
    """The job file for rounds of so many inner steps, H."""
    outer = {"name": "nesterov", "rate": 0.7, "mu": 0.6}
    return {
        "name": "diloco",
        "model": {"source": "script"},
        "data": {"source": "script", "train": TRAIN, "validation": 1},
        "strategy": {"name": "diloco", "batch": BATCH, "steps": inner_steps, "outer": outer},
        "limits": {"samples": setting.steps * LEARNERS * BATCH},
        "evaluate": {"every": 10**9, "keep": "last"},
        "snapshots": {"every_s": None},
        "deadlines": {"beat_s": PATIENCE_S, "progress_s": PATIENCE_S},
        "replicas": LEARNERS,
        "seed": setting.seed,
    }


def in_one_process(setting: Setting, *words: str) -> Figures:
    """Figures that the script prints."""
    command = [sys.executable, SCRIPT, *setting.words, *words]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    loss, accuracy = json.loads(ended.stdout)
    return {"loss": loss, "accuracy": accuracy}


def plain(batch: int, setting: Setting) -> Figures:
    """Figures of one learner without exchanges."""
    return in_one_process(setting, "plain", str(batch), str(setting.steps))


def simulated(inner_steps: int, setting: Setting) -> Figures:
    """Figures of the algorithm in one process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(json.dumps(job_fields(setting, inner_steps)))
        return in_one_process(setting, "simulated", str(file))


def job(inner_steps: int, setting: Setting) -> Figures:
    """Figures of a job."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(json.dumps(job_fields(setting, inner_steps)))
        runs.dbelief(folder, "run", "--quiet", "--job", "job.yaml", SCRIPT, *setting.words)
        return figures_of(json.loads((Path(folder) / "runs/diloco/summary.json").read_text()))


WAYS: dict[str, Callable[[Setting], Figures]] = {
    "ddp": partial(plain, LEARNERS * BATCH),
    "alone": partial(plain, BATCH),
    **{f"simulated-{steps}": partial(simulated, steps) for steps in ROUNDS},
    **{f"job-{steps}": partial(job, steps) for steps in ROUNDS},
}


def means_of(rows: list[dict[str, Any]], ways: list[str]) -> list[dict[str, Any]]:
    """Mean loss of each way over the seeds; its ratios to that of DDP, and to that of its simulation, if measured."""
    losses = {way: statistics.mean(row[way]["loss"] for row in rows) for way in ways}
    return [
        {
            "way": way,
            "loss": loss,
            "over_ddp": loss / losses["ddp"] if "ddp" in losses else None,
            "over_simulated": loss / losses[other] if other != way and other in losses else None,
        }
        for way, loss in losses.items()
        for other in [way.replace("job", "simulated")]
    ]


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--seeds", type=options.numbers, default=[0])
    parser.add_argument("--ways", type=options.words, default=list(WAYS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rate", type=float, default=0.001)
    arguments = parser.parse_args()
    if unknown := set(arguments.ways) - WAYS.keys():
        parser.error(f"no way is called {min(unknown)!r}, only {', '.join(WAYS)}")
    needs_torch()
    source, rows = source_of("char_gpt"), []
    for seed in arguments.seeds:
        row: dict[str, Any] = {"seed": seed}
        for way in arguments.ways:
            row[way] = WAYS[way](Setting(source, seed, arguments.steps, arguments.rate))
            report.progress({"seed": seed, "way": way, **row[way]})
        rows.append(row)
    means = means_of(rows, arguments.ways)
    table = Table("way", "test loss", "over DDP", "over the simulation")
    for mean in means:
        ratios = ("" if mean[name] is None else f"{mean[name]:.4f}" for name in ("over_ddp", "over_simulated"))
        table.add_row(mean["way"], f"{mean['loss']:.4f}", *ratios)
    report.show(table, {"means": means, "rows": rows})


if __name__ == "__main__":
    main()
