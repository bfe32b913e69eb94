"""Whether many asynchronous replicas still learn: jobs trained with their delays, beside one replica at equal samples.

    DBELIEF_DATA=... python -m benchmarks.accuracy.delays [--models mnist,gpt] [--replicas 10,100,1000]
        [--ways downpour,aware,easgd,diloco] [--seeds 0] [--delays FOLDER] [--cost 3] [--json rows.jsonl]

Each job is trained in one process in the order of a delays file (`dbelief train --set delays=FILE`), with the same
samples for any number of replicas; nothing but this number is changed. Ways:

    downpour       each mini-batch is fetched for and pushed; Adagrad
    aware          the same with SGD, and the rate of a push divided by its staleness
    easgd          async-easgd, an exchange in 4 mini-batches
    diloco         rounds of all replicas, of 5 inner steps

The models: MNIST, 784-256-10, and a character GPT of 2 layers of 64 (needs torch; else it is left out). FOLDER has
files KIND-REPLICAS.npz, KIND one of downpour, elastic and rounds; without it replicas have lognormal cycles of one
mean, with a spread of 0.3. Runs are interleaved: all ways and numbers for a seed, then the next. A run that diverges
has no loss.

--cost N also measures samples per processor second of `downpour` on MNIST at 1, 10, 100 and 1000 replicas, beside a
plain loop (gather, gradient, rule), N times in turn; the figures are medians.

A finished run is one line of the file of --json; the command started again continues after the last of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from threadpoolctl import threadpool_limits

import dbelief
from benchmarks.accuracy.scripts import source_of
from benchmarks.harness import options, report, runs
from benchmarks.harness.delay_traces import drawn
from dbelief.arrays.backend import Backend, aligned_float32
from dbelief.data import Dataset, load
from dbelief.errors import RuntimeFailure
from dbelief.job import Job, build_job
from dbelief.optim import apply_rule, make_rule, warm_up
from dbelief.rundir.summary import read_summary
from dbelief.simulate.replay.delays import DOWNPOUR, ELASTIC, ROUNDS
from dbelief.simulate.replay.programs import part_of
from dbelief.simulate.replay.replayed_job import DelayReplay
from dbelief.training.session import build_model, initial_values

Row = dict[str, Any]
HOST = Backend("numpy", np)
MODELS = {
    "mnist": {
        "model": {"layers": [{"dense": 256}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"},
        "data": {"source": "idx", "folder": "${DBELIEF_DATA}/mnist", "validation": 5000},
        "limits": {"epochs": 4},
    },
    "gpt": {
        "model": {"python": f"{Path(__file__).with_name('delays_gpt.py')}:model"},
        "limits": {"samples": 16_000},
    },
}
BATCH = {"mnist": 20, "gpt": 8}
RATES = {
    "mnist": {"downpour": 0.01, "aware": 0.1, "easgd": 0.05, "inner": 0.05},
    "gpt": {"downpour": 0.01, "aware": 0.2, "easgd": 0.2, "inner": 0.2},
}
KINDS = {"downpour": DOWNPOUR, "aware": DOWNPOUR, "easgd": ELASTIC, "diloco": ROUNDS}
CONTEXT = 64
"""Of the GPT: letters of a window."""
COST_REPLICAS = (1, 10, 100, 1000)


def strategy_of(way: str, model: str) -> Row:
    """The section of a way."""
    rates, batch = RATES[model], BATCH[model]
    return {
        "downpour": {"name": "downpour", "batch": batch, "rule": {"name": "adagrad", "rate": rates["downpour"]}},
        "aware": {
            "name": "downpour",
            "batch": batch,
            "rule": {"name": "sgd", "rate": rates["aware"]},
            "staleness_aware": True,
        },
        "easgd": {"name": "async-easgd", "batch": batch, "rate": rates["easgd"], "period": 4},
        "diloco": {"name": "diloco", "batch": batch, "steps": 5, "inner": {"name": "sgd", "rate": rates["inner"]}},
    }[way]


def job_fields(way: str, model: str, seed: int, delays: Path, data: Path | None) -> Row:
    """The job of a run."""
    return {
        "name": f"{delays.stem}-{model}-{way}-{seed}",
        **MODELS[model],
        **({"data": {"source": "npz", "file": str(data)}} if data is not None else {}),
        "strategy": strategy_of(way, model),
        "evaluate": {"every": 10**9, "keep": "last"},
        "seed": seed,
        "delays": str(delays),
        "device": "cpu",
    }


def windows(folder: Path) -> Path:
    """Windows of the text, and the letters that follow: an .npz file."""
    text = Path(source_of("char_gpt")).read_text()
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    numbers = np.array([letters[letter] for letter in text], np.int64)
    count = (len(numbers) - 1) // CONTEXT
    inputs = numbers[: count * CONTEXT].reshape(count, CONTEXT)
    targets = numbers[1 : count * CONTEXT + 1].reshape(count, CONTEXT)
    np.savez(folder / "windows.npz", inputs=inputs, targets=targets.astype(np.float32))
    return folder / "windows.npz"


def delays_of(kind: str, replicas: int, given: Path | None, folder: Path) -> Path:
    """The delays file of so many replicas; drawn where none is given, and of one replica, which has no delays."""
    if given is not None and replicas > 1:
        return given.resolve() / f"{kind}-{replicas}.npz"
    path = folder / f"{kind}-{replicas}.npz"
    if not path.exists():
        drawn(kind, replicas, max(2_000, 20 * replicas)).write(path)
    return path


def trained(fields: Row, folder: Path) -> Row:
    """Figures of a run; the job trains in this process."""
    began_s = time.perf_counter()
    try:
        summary = dbelief.train({**fields, "output": str(folder / "runs")}).summary
    except RuntimeFailure:
        summary = read_summary(folder / "runs" / fields["name"] / "summary.json")
        if summary.state != "failed":  # it was stopped; else it has diverged
            raise
    copied = ("test_accuracy", "test_loss", "staleness_mean", "samples", "replicas", "reason")
    row = {name: getattr(summary, name) for name in copied}
    return row | {"wall_s": time.perf_counter() - began_s}


# -- cost --------------------------------------------------------------------------------------------------------


def plain_speed(job: Job, data: Dataset) -> float:
    """Samples per processor second of a loop over one epoch."""
    assert data.train is not None, "MNIST has one"
    strategy: Any = job.strategy
    model, _ = build_model(job, data, HOST)
    layout, w = initial_values(job, model)
    part, gradient = layout.part(0), aligned_float32(layout.size)
    views, out = part.views(w), part.views(gradient)
    rule = make_rule("adagrad", {})
    states = tuple(np.full_like(w, value) for value in rule.state.values())
    warm_up(rule, layout.size)
    batches = part_of("worker", "pipeline.batches").BatchLoader(
        data.train.read_by(model, HOST), strategy.batch, job.seed, HOST
    )
    batches.expect(0, 0, len(data.train))
    began_s = time.process_time()
    for number, first in enumerate(range(0, len(data.train), strategy.batch)):
        model.loss_and_gradient(views, batches(0, first, min(first + strategy.batch, len(data.train))), out)
        apply_rule(rule, w, gradient, states, np.float32(strategy.rule.rate), number + 1)
    return len(data.train) / (time.process_time() - began_s)


def replay_speed(job: Job, data: Dataset, replicas: int) -> float:
    """The same with the delays of so many replicas."""
    trace = drawn(DOWNPOUR, replicas, max(2_000, 4 * replicas))
    job = job.model_copy(update={"replicas": replicas})
    model, _ = build_model(job, data, HOST)
    replay = DelayReplay(job, trace, "", data, model, *initial_values(job, model), HOST)
    with closing(replay):
        began_s = time.process_time()
        for _ in replay.run():
            pass
        return float(replay.training.progress.samples / (time.process_time() - began_s))


def costs(rounds: int) -> list[Row]:
    """Speeds and ratios of the plain loop's to them, medians over interleaved rounds, at mini-batches of 100."""
    strategy = {**strategy_of("downpour", "mnist"), "batch": 100, "warm_start": None}
    fields = {**MODELS["mnist"], "strategy": strategy, "limits": {"epochs": 1}, "name": "cost"}
    job = build_job(fields, Path.cwd())
    data = load(job.data, job.folder)
    plain, found = list[float](), {replicas: list[float]() for replicas in COST_REPLICAS}
    with threadpool_limits(1):
        plain_speed(job, data)
        for _ in range(rounds):
            plain.append(plain_speed(job, data))
            for replicas, speeds in found.items():
                speeds.append(replay_speed(job, data, replicas))
    return [
        {
            "replicas": replicas,
            "samples_per_s": statistics.median(speeds),
            "times": statistics.median(one / own for one, own in zip(plain, speeds, strict=True)),
        }
        for replicas, speeds in found.items()
    ]


# -- the table ---------------------------------------------------------------------------------------------------


def table_of(rows: Sequence[Row], counts: Sequence[int]) -> Table:
    """Medians over the seeds, of one replica and of each number."""
    table = Table("model", "way", "replicas", "staleness", "test loss", "against one", "test accuracy")
    keys = dict.fromkeys((row["model"], row["way"]) for row in rows)
    for model, way in keys:
        base: float | None = None
        for count in (1, *counts):
            mine = [row for row in rows if (row["model"], row["way"], row["count"]) == (model, way, count)]
            if not mine:
                continue
            loss, accuracy, staleness = (
                _median(mine, name) for name in ("test_loss", "test_accuracy", "staleness_mean")
            )
            base = loss if count == 1 else base
            against = None if loss is None or base is None else loss / base
            figures = [(staleness, ".1f"), (loss, ".4f"), (against, ".2f"), (accuracy and 100 * accuracy, ".2f")]
            cells = ["" if value is None else format(value, form) for value, form in figures]
            table.add_row(model, way, str(count), *cells)
    return table


def _median(rows: Sequence[Row], name: str) -> float | None:
    """The median of a figure; None where a run lacks it."""
    values = [row[name] for row in rows]
    return None if None in values else statistics.median(values)


def main() -> None:
    """Train, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--models", type=options.words, default=["mnist", "gpt"])
    parser.add_argument("--ways", type=options.words, default=list(KINDS))
    parser.add_argument("--replicas", type=options.ascending, default=[10, 100, 1000])
    parser.add_argument("--seeds", type=options.numbers, default=[0])
    parser.add_argument("--delays", type=Path, help="folder with KIND-REPLICAS.npz; default: drawn")
    parser.add_argument("--cost", type=int, default=0, help="rounds of the measurement of speed")
    parser.add_argument("--json", type=Path, help="JSON lines: runs that are finished, and where new ones are added")
    arguments = parser.parse_args()
    _check(parser, arguments)
    rows = runs.Rows(arguments.json)
    known = {(row["seed"], row["model"], row["way"], row["count"]) for row in rows}
    with tempfile.TemporaryDirectory(prefix="dbelief-") as name:
        folder = Path(name)
        data = {"mnist": None, "gpt": windows(folder) if "gpt" in arguments.models else None}
        every = itertools.product(arguments.seeds, arguments.models, arguments.ways, (1, *arguments.replicas))
        for seed, model, way, count in every:
            if (seed, model, way, count) not in known:
                delays = delays_of(KINDS[way], count, arguments.delays, folder)
                fields = job_fields(way, model, seed, delays, data[model])
                row = {"seed": seed, "model": model, "way": way, "count": count} | trained(fields, folder)
                rows.append(row)
                report.progress(row)
    cost = costs(arguments.cost) if arguments.cost else []
    report.show(table_of(rows, arguments.replicas), {"rows": rows, "cost": cost})


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse unknown names; leave the GPT out where torch is not installed."""
    for given, known in ((arguments.models, MODELS), (arguments.ways, KINDS)):
        if unknown := set(given) - set(known):
            parser.error(f"{min(unknown)!r} is none of {', '.join(known)}")
    if "gpt" in arguments.models and importlib.util.find_spec("torch") is None:
        print("left out: gpt, for torch is not installed", file=sys.stderr)
        arguments.models.remove("gpt")


if __name__ == "__main__":
    main()
