"""Whether many asynchronous replicas still learn, and with which setting: beside one replica at equal samples.

    DBELIEF_DATA=... python -m benchmarks.accuracy.delays [--models mnist,gpt] [--replicas 10,100,1000]
        [--ways downpour,easgd,diloco] [--seeds 1,2] [--cost 3] [--json rows.jsonl] [--plot delays.png]

Each job is trained in one process in the order of a delays file (`dbelief train --set delays=FILE`), which is simulated
before (`dbelief simulate --delays FILE`): an office of as many machines as replicas, in `delay_orders`. Samples are the
same for any number of replicas. Ways: Downpour, async-easgd and DiLoCo. The models: MNIST, 784-256-10, and a character
GPT of 2 layers of 64 (needs torch; else it is left out).

The setting that suits one replica is kept unchanged, and the others of `delay_settings` are tried beside it on seed 0
with half of the samples. That with the least test loss there is trained with other seeds and all samples, and the
unchanged one too. The largest number of replicas comes first. A run that diverges has no loss.

--cost N also measures samples per processor second of `downpour` on MNIST at 1, 10, 100 and 1000 replicas, beside a
plain loop (gather, gradient, rule), N times in turn; the figures are medians.

A finished run is one line of the file of --json; the command started again continues after the last of them.
--max-runs 0 only prints the table of these.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
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
from benchmarks.accuracy import delays_plot
from benchmarks.accuracy.delay_orders import write_order
from benchmarks.accuracy.delay_settings import SAMPLES, UNCHANGED, WAYS, settings, unchanged
from benchmarks.accuracy.scripts import source_of
from benchmarks.harness import options, report, runs
from benchmarks.harness.delay_traces import drawn
from dbelief.arrays.backend import Backend, aligned_float32
from dbelief.data import Dataset, load
from dbelief.errors import RuntimeFailure
from dbelief.job import Job, build_job
from dbelief.optim import apply_rule, make_rule, warm_up
from dbelief.rundir.summary import read_summary
from dbelief.simulate.replay.delays import DOWNPOUR
from dbelief.simulate.replay.programs import part_of
from dbelief.simulate.replay.replayed_job import DelayReplay
from dbelief.training.session import build_model, initial_values
from docs.generators.measurements import Scaled

Row = dict[str, Any]
HOST = Backend("numpy", np)
MODELS: dict[str, Row] = {
    "mnist": {
        "model": {"layers": [{"dense": 256}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"},
        "data": {"source": "idx", "folder": "${DBELIEF_DATA}/mnist", "validation": 5000},
    },
    "gpt": {
        "model": {"python": f"{Path(__file__).with_name('delays_gpt.py')}:model"},
    },
}
TUNING_SEED = 0
CONTEXT = 64
"""Of the GPT: letters of a window."""
COST_REPLICAS = (1, 10, 100, 1000)


def job_fields(model: str, strategy: Row, seed: int, samples: int, data: Path | None) -> Row:
    """The job of a run, without delays."""
    return {
        "name": "delays",
        **MODELS[model],
        **({"data": {"source": "npz", "file": str(data)}} if data is not None else {}),
        "strategy": strategy,
        "limits": {"samples": samples},
        "evaluate": {"every": 10**9, "keep": "last"},
        "seed": seed,
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


def trained(fields: Row, replicas: int) -> Row:
    """Figures of a run, whose delays are simulated; the job trains in this process."""
    with tempfile.TemporaryDirectory(prefix="dbelief-") as name:
        folder = Path(name)
        job = build_job(fields, folder)
        data = load(job.data, job.folder)
        assert data.train is not None, "both models have one"
        model, _ = build_model(job, data, HOST)
        parameters = initial_values(job, model)[0].size
        write_order(job, replicas, parameters, len(data.train), folder / "delays.npz")
        began_s = time.perf_counter()
        try:
            summary = dbelief.train({**fields, "delays": str(folder / "delays.npz"), "output": name}).summary
        except RuntimeFailure:
            summary = read_summary(folder / fields["name"] / "summary.json")
            if summary.state != "failed":  # it was stopped; else it has diverged
                raise
        copied = ("test_accuracy", "test_loss", "staleness_mean", "samples", "reason")
        row = {name: getattr(summary, name) for name in copied}
        return row | {"wall_s": time.perf_counter() - began_s}


class Measurement:
    """Runs that are finished, and new ones of the same.

    Parameters
    ----------
    most
        How many runs may be new; `Spent` is raised where one more is needed.
    """

    def __init__(self, rows: runs.Rows, data: Row, most: float) -> None:
        self.rows, self._data, self._left = rows, data, most

    def row(self, model: str, way: str, count: int, setting: str, seed: int) -> Row:
        """A run; it is trained where it is not known."""
        key = {"model": model, "way": way, "count": count, "setting": setting, "seed": seed}
        if (found := next((row for row in self.rows if key.items() <= row.items()), None)) is not None:
            return found
        if self._left < 1:
            raise Spent
        self._left -= 1
        samples = SAMPLES[model] // (2 if seed == TUNING_SEED else 1)
        strategy = settings(way, model, count)[setting]
        row = key | trained(job_fields(model, strategy, seed, samples, self._data[model]), count)
        self.rows.append(row)
        report.progress(row)
        return row

    def best(self, model: str, way: str, count: int) -> str:
        """The setting with the least loss on the seed for tuning."""
        names = list(settings(way, model, count))
        if len(names) == 1:
            return names[0]
        losses = {name: self.row(model, way, count, name, TUNING_SEED)["test_loss"] for name in names}
        return min(names, key=lambda name: math.inf if losses[name] is None else losses[name])

    def measure(self, model: str, way: str, count: int, seeds: Sequence[int]) -> None:
        """Train the unchanged setting and the best one with each seed."""
        for seed, setting in itertools.product(seeds, dict.fromkeys((self.best(model, way, count), UNCHANGED))):
            self.row(model, way, count, setting, seed)


class Spent(Exception):
    """No more runs may be trained."""


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
    strategy = {**unchanged("downpour", "mnist"), "batch": 100, "warm_start": None}
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

COLUMNS = (
    ("way", "{way}", ""),
    ("replicas", "{count:,}", ""),
    ("staleness", "{staleness:.1f}", "5 %"),
    ("loss, unchanged", "{unchanged_loss:.3f}", "20 %"),
    ("loss, best", "{best_loss:.3f}", "10 %"),
    ("accuracy, unchanged and best, %", "{accuracies!c:.1f}", "2"),
    ("best setting", "{setting}", ""),
)


def means(rows: Sequence[Row]) -> list[Row]:
    """Means over the seeds that are not the tuning's: of each model, way and number, with both settings."""
    found = []
    measured = [row for row in rows if row["seed"] != TUNING_SEED]
    keys = sorted({(row["model"], row["way"], row["count"]) for row in measured}, key=_place)
    for model, way, count in keys:
        mine = [row for row in measured if (row["model"], row["way"], row["count"]) == (model, way, count)]
        first = [row for row in mine if row["setting"] == UNCHANGED]
        best = [row for row in mine if row["setting"] != UNCHANGED] or first
        accuracies = [_mean(some, "test_accuracy") for some in (first, best)]
        found.append(
            {
                "model": model,
                "way": way,
                "count": count,
                "seeds": len(best),
                "staleness": _mean(best, "staleness_mean"),
                "unchanged_loss": _mean(first, "test_loss"),
                "best_loss": _mean(best, "test_loss"),
                "accuracies": None if None in accuracies else accuracies,
                "setting": best[0]["setting"],
            }
        )
    return found


def _place(key: tuple[str, str, int]) -> tuple[int, int, int]:
    model, way, count = key
    return list(MODELS).index(model), list(WAYS).index(way), count


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """The mean of a figure; None where a run lacks it."""
    values = [row[name] for row in rows]
    return statistics.fmean(values) if values and None not in values else None


def recipes(found: Sequence[Row]) -> Row:
    """How a file of `docs/measurements` makes a table of each model."""
    made = {}
    for model in dict.fromkeys(row["model"] for row in found):
        mine = [row for row in found if row["model"] == model]
        known = any(row["accuracies"] for row in mine)
        columns = [list(filter(None, column)) for column in COLUMNS if known or "accuracies" not in column[1]]
        made[model] = {"rows": "means", "where": {"model": model}, "words": WAYS, "columns": columns}
    return made


def table_of(found: Sequence[Row]) -> Table:
    """The means for the terminal."""
    table = Table("model", *(head for head, _, _ in COLUMNS))
    scaled = Scaled(WAYS)
    for row in found:
        table.add_row(row["model"], *(scaled.cell(text, row) for _, text, _ in COLUMNS))
    return table


def main() -> None:
    """Train, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--models", type=options.words, default=["mnist", "gpt"])
    parser.add_argument("--ways", type=options.words, default=list(WAYS))
    parser.add_argument("--replicas", type=options.ascending, default=[10, 100, 1000])
    parser.add_argument("--seeds", type=options.numbers, default=[1, 2], help=f"not {TUNING_SEED}, which tunes")
    parser.add_argument("--cost", type=int, default=0, help="rounds of the measurement of speed")
    parser.add_argument("--json", type=Path, help="JSON lines: runs that are finished, and where new ones are added")
    parser.add_argument("--max-runs", type=float, default=math.inf, help="new runs, at most")
    parser.add_argument("--plot", type=Path, help="draw loss against replicas")
    arguments = parser.parse_args()
    _check(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as name:
        data = {"mnist": None, "gpt": windows(Path(name)) if "gpt" in arguments.models else None}
        measurement = Measurement(runs.Rows(arguments.json), data, arguments.max_runs)
        try:
            for model, count in itertools.product(arguments.models, (*reversed(arguments.replicas), 1)):
                for way in arguments.ways:
                    measurement.measure(model, way, count, arguments.seeds)
        except Spent:
            print("not complete: --max-runs", file=sys.stderr)
    found = means(measurement.rows)
    cost = costs(arguments.cost) if arguments.cost else []
    if arguments.plot:
        delays_plot.draw(found, arguments.plot)
    figures = {"means": found, "rows": list(measurement.rows), "cost": cost}
    report.show(table_of(found), figures | {"tables": recipes(found)})


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse unknown names; leave the GPT out where torch is not installed."""
    if TUNING_SEED in arguments.seeds:
        parser.error(f"--seeds: {TUNING_SEED} is the seed on which settings are chosen")
    for given, known in ((arguments.models, MODELS), (arguments.ways, WAYS)):
        if strange := set(given) - set(known):
            parser.error(f"{min(strange)!r} is none of {', '.join(known)}")
    if "gpt" in arguments.models and importlib.util.find_spec("torch") is None:
        print("left out: gpt, for torch is not installed", file=sys.stderr)
        arguments.models.remove("gpt")


if __name__ == "__main__":
    main()
