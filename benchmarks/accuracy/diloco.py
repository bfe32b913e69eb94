"""DiLoCo's quality: a character GPT by four learners that exchange every H steps, beside DDP and one learner alone.

    DBELIEF_DATA=... python -m benchmarks.accuracy.diloco [--seeds 0] [--ways ddp,alone,simulated-8,job-8] [--steps 488]
        [--way mine:steps=32,outer.mu=0.9,wire.push=int8] [--json rows.jsonl]

The GPT is that of `examples/scripts/char_gpt.py` (4 layers of 128, context 128) with an output of its own, on tiny
Shakespeare: AdamW at a constant rate, mini-batches of 8 windows, outer Nesterov. The rates, and beta of AdamW, are the
best found on seed 0, for DDP apart. Ways, each with the same windows in the same order:

    ddp            one process, mini-batches of 32: the steps of four synchronous ranks
    alone          one learner in the same time: as many steps, of 8
    simulated-H    the algorithm for four learners in one process, with torch's SGD as the outer rule
    job-H          a job with four replicas, each a process
    others         such a job with more fields (JOBS), or with those of --way NAME:FIELD=VALUE,...: of the strategy, or
                   of `wire`

The loss is that of the windows behind the training text, of the parameters at the end. Bytes are those that a learner
sends, and receives, over the whole run: of a job the payload of all segments, initial values among them; of DDP those
of a ring, 2 (P - 1) / P of 4 bytes for each parameter and step, which are 6 with four.

A finished run is one line of the file of --json; the command started again continues after the last of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.accuracy.scripts import figures_of, source_of
from benchmarks.harness import options, report, runs
from benchmarks.harness.extras import needs_torch

SCRIPT = str(Path(__file__).with_name("diloco_script.py"))
TRAIN, BATCH, LEARNERS = 7_808, 8, 4
ROUNDS = (8, 32, 128)
PATIENCE_S = 600.0
"""More than a long round takes on a busy machine."""
STEPS = 488
"""Two epochs."""
RATE, BETA, BETA_DDP = 0.004, 0.5, 0.8
OUTER = {"name": "nesterov", "rate": 0.8, "mu": 0.4}
RING = 4 * 2 * (LEARNERS - 1) / LEARNERS
"""Bytes of a parameter that a rank sends, and receives, in a step."""
MEAN = "outer.rate=1.0,outer.mu=0.0"
"""Fields of an outer rule without momentum, which what a codec leaves out is already."""
JOBS = {
    **{f"job-{steps}": f"steps={steps}" for steps in ROUNDS},
    "fragments": "steps=32,fragments=4",
    "delay": "steps=32,delay=8",
    "delay-blend": "steps=32,delay=8,blend=0.5",
    "bf16": "steps=32,wire.pull=bf16",
    "int8": "steps=32,wire.push=int8,wire.pull=bf16",
    "int4": "steps=32,wire.push=int4,wire.pull=bf16",
    "one-bit": "steps=32,wire.push=one-bit,wire.pull=bf16",
    "top-k": f"steps=32,{MEAN},wire.push.name=top-k,wire.push.decay=0.95,wire.pull=bf16",
    "quorum": "steps=32,quorum=3",
    "links": "steps=128,delay=128,wire.push=int4,wire.pull=bf16",
    "all": "steps=32,fragments=4,delay=8,blend=0.5,wire.push=int8,wire.pull=bf16",
}
"""Fields of a job, by way."""
ROUNDS_OF = {way: f"job-{fields.partition(',')[0].removeprefix('steps=')}" for way, fields in JOBS.items()}
"""The job of as many steps whose other fields are the defaults, by way."""

Row = dict[str, Any]


class Setting(NamedTuple):
    """What all ways of a run have: the text's path, seed, and steps of a learner."""

    source: str
    seed: int
    steps: int

    def words(self, beta: float = BETA) -> list[str]:
        """First words of the script."""
        return [self.source, str(self.seed), str(TRAIN), str(RATE), str(beta)]


def job_fields(setting: Setting) -> dict[str, Any]:
    """The job file without the fields of a way."""
    return {
        "name": "diloco",
        "model": {"source": "script"},
        "data": {"source": "script", "train": TRAIN, "validation": 1},
        "strategy": {"name": "diloco", "batch": BATCH, "outer": OUTER},
        "limits": {"samples": setting.steps * LEARNERS * BATCH},
        "evaluate": {"every": 10**9, "keep": "last"},
        "snapshots": {"every_s": None},
        "deadlines": {"beat_s": PATIENCE_S, "progress_s": PATIENCE_S},
        "replicas": LEARNERS,
        "seed": setting.seed,
    }


def overrides_of(fields: str) -> dict[str, str]:
    """Values by dotted path in the job file, of `FIELD=VALUE,...`."""
    pairs = (pair.split("=", 1) for pair in fields.split(","))
    return {field if field.startswith("wire.") else f"strategy.{field}": value for field, value in pairs}


def in_one_process(first: Sequence[str], *words: str) -> Row:
    """Figures that the script prints."""
    command = [sys.executable, SCRIPT, *first, *words]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(zip(("loss", "accuracy", "parameters"), json.loads(ended.stdout), strict=True))


def ddp(setting: Setting) -> Row:
    """Figures of synchronous ranks, and the bytes of a ring."""
    found = in_one_process(setting.words(BETA_DDP), "plain", str(LEARNERS * BATCH), str(setting.steps))
    return found | with_ring(found["parameters"], setting.steps)


def with_ring(parameters: int, steps: int) -> Row:
    """Bytes of a rank of DDP."""
    return dict.fromkeys(("sent", "received"), round(RING * parameters * steps))


def alone(setting: Setting) -> Row:
    """Figures of one learner, which exchanges nothing."""
    return in_one_process(setting.words(), "plain", str(BATCH), str(setting.steps)) | {"sent": 0, "received": 0}


def simulated(inner_steps: int, setting: Setting) -> Row:
    """Figures of the algorithm in one process."""
    with tempfile.TemporaryDirectory() as folder:
        file, fields = Path(folder) / "job.yaml", job_fields(setting)
        file.write_text(json.dumps({**fields, "strategy": {**fields["strategy"], "steps": inner_steps}}))
        return in_one_process(setting.words(), "simulated", str(file))


def job(overrides: Mapping[str, str], setting: Setting) -> Row:
    """Figures of a job, and bytes of a replica; no memory is shared, so that all of them travel."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(json.dumps(job_fields(setting)))
        words = ["--quiet", "--no-shared-memory", *options.settings(overrides), "--job", "job.yaml"]
        runs.dbelief(folder, "run", *words, SCRIPT, *setting.words())
        summary = json.loads((Path(folder) / "runs/diloco/summary.json").read_text())
    replicas = summary["bytes_per_replica"].values()
    sent = {way: round(statistics.mean(one.get(way, 0) for one in replicas)) for way in ("sent", "received")}
    return figures_of(summary) | {"parameters": summary["parameters"]} | sent


SIMPLE: dict[str, Callable[[Setting], Row]] = {
    "ddp": ddp,
    "alone": alone,
    **{f"simulated-{steps}": partial(simulated, steps) for steps in ROUNDS},
}
"""Ways in one process."""


def ways_of(jobs: Mapping[str, str]) -> dict[str, Callable[[Setting], Row]]:
    """All ways; the fields of these jobs, by name."""
    return SIMPLE | {way: partial(job, overrides_of(fields)) for way, fields in jobs.items()}


def means_of(rows: Sequence[Row]) -> list[Row]:
    """Of each way the means over its seeds, and the ratios of its loss to DDP's, its simulation's, and float32's.

    float32: the job of as many steps whose other fields are the defaults. A ratio is that of the seeds that both have,
    None where there are none. `fewer`: bytes of a ring over those that a learner sends and receives.
    """
    losses: dict[str, dict[int, float]] = {}
    for row in rows:
        losses.setdefault(row["way"], {})[row["seed"]] = row["loss"]

    def ratio(way: str, other: str) -> float | None:
        shared = losses[way].keys() & losses.get(other, {}).keys() if way != other else ()
        mine, others = (sum(losses[name][seed] for seed in shared) for name in (way, other))
        return mine / others if shared else None

    means = []
    for way, found in losses.items():
        mean: Row = {"way": way, "seeds": len(found), "loss": statistics.mean(found.values())}
        mean["over_ddp"] = ratio(way, "ddp")
        mean["over_simulated"] = ratio(way, way.replace("job", "simulated"))
        mean["over_float32"] = ratio(way, ROUNDS_OF.get(way, way))
        mine = [row for row in rows if row["way"] == way and row.get("received")]
        travelled = [(row["sent"] + row["received"]) / (2 * row["ring"]) for row in mine]
        mean["fewer"] = 1 / statistics.mean(travelled) if travelled else None
        means.append(mean)
    return means


def more_way(text: str) -> tuple[str, str]:
    """NAME and FIELD=VALUE,... of --way."""
    name, colon, fields = text.partition(":")
    if not (name and colon and all("=" in pair for pair in fields.split(","))):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:FIELD=VALUE,...")
    return name, fields


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--seeds", type=options.numbers, default=[0])
    parser.add_argument("--ways", type=options.words)
    parser.add_argument("--way", type=more_way, action="append", default=[], metavar="NAME:FIELD=VALUE,...")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path, help="JSON lines: runs that are finished, and where new ones are added")
    arguments = parser.parse_args()
    needs_torch()
    source, rows, ways = source_of("char_gpt"), runs.Rows(arguments.json), ways_of(JOBS | dict(arguments.way))
    wanted = list(ways) if arguments.ways is None else list(dict.fromkeys([*arguments.ways, *dict(arguments.way)]))
    if unknown := set(wanted) - ways.keys():
        parser.error(f"no way is called {min(unknown)!r}, only {', '.join(ways)}")
    known = {(row["seed"], row["way"]) for row in rows}
    for seed, way in itertools.product(arguments.seeds, wanted):
        if (seed, way) not in known:
            row = {"seed": seed, "way": way} | ways[way](Setting(source, seed, arguments.steps))
            rows.append(row | {"ring": with_ring(row["parameters"], arguments.steps)["sent"]})
            report.progress(rows[-1])
    means = means_of(rows)
    table = Table("way", "seeds", "test loss", "over DDP", "over the simulation", "over float32", "times fewer bytes")
    for mean in means:
        way, seeds, *figures = mean.values()
        table.add_row(way, str(seeds), *("" if figure is None else f"{figure:.4f}" for figure in figures))
    report.show(table, {"means": means, "rows": rows})


if __name__ == "__main__":
    main()
