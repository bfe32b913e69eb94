"""What a step of a small model costs: by default MNIST 784-256-10, mini-batches of 100, by Downpour with Adagrad.

    DBELIEF_DATA=... python -m benchmarks.workers.small_step [--rounds 5] [--epochs 7] [--peers PYTHON] [--job JOB]

Every way takes its turn in every round. A run of one epoch (`--short`) is subtracted from a longer one, so that the
start and the end count nowhere. In lockstep that takes some epochs: until all have joined, some train alone. With
--short 0 no other run is subtracted: samples/s are those from the third epoch on, by the run's own events, which vary
less; processor time is that of the whole run, for the same samples.

    samples/s    of all workers
    cpu s        processor time of all processes for 1,000 samples
    beyond ms    processor time of a step beyond the floor, which is the same step by one process in the same round:
                 it gathers, computes, checks and applies, with one thread and no message
    of floor     the two as a ratio

`WORKERS` processes that do this at once are a row too: what is beyond the floor there, they lose by sharing caches and
memory, without a message.

`--beside`: another checkout of dbelief, each of whose runs takes its turn beside this one's.
`--peers`: an interpreter that has torch and Ray: the default step by each of them (`step_peer.py`). The processor time
of Ray's processes, which are no children of the one that starts them, is not measured.
`--job`, `--strategy`: another job, or its strategy; the floor is only that of Downpour's.

In the figures a peer's `ours_samples_per_s_x` and `ours_cpu_s_x` are the ratios of shared memory, with the first number
of shards, to it: medians over the rounds; `over_other_` those of this checkout to the other.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.harness import checkout, options, report, timing
from benchmarks.harness.timing import processor_s
from dbelief.arrays.backend import select_backend
from dbelief.data import load
from dbelief.job import Downpour, Job, load_job
from dbelief.optim import make_rule
from dbelief.optim.apply import apply_rule, warm_up
from dbelief.rundir.events import read_events
from dbelief.training.session import build_model

JOB = checkout.EXAMPLES / "mnist.yaml"
SHORT = 1
FIELDS = {"snapshots.every_s": "null", "evaluate.every": "1000000000"}
LIMIT_S = 900.0
PEER = Path(__file__).with_name("step_peer.py")
PEERS = ("torch", "torch-ddp", "torch-rpc", "ray")
WORKERS, PEER_BATCH = 4, 100
WAYS = {"shared memory": ["--shared-memory"], "TCP": ["--no-shared-memory"]}
OTHER = "other"
SETTLED = 3.0
"""Epochs after which all workers have joined."""
Row = dict[str, float]


def fields_of(file: Path, strategy: str) -> dict[str, str]:
    """What is set in the job's file."""
    fields = FIELDS | ({"strategy": strategy} if strategy else {})
    downpour = isinstance(load_job(file, fields).strategy, Downpour)
    return fields | ({"strategy.warm_start": "null"} if downpour else {})


def run(
    root: Path, job: Path, always: Mapping[str, str], extra: list[str], shards: int, epochs: int
) -> tuple[np.ndarray, np.ndarray]:
    """(3,) samples, seconds, and processor seconds of all processes, of one run by a checkout; and when it has settled.

    The latter has no processor time.
    """
    with tempfile.TemporaryDirectory() as folder:
        fields = {**always, "shards": str(shards), "limits.epochs": str(epochs), "output": folder}
        options = [f"--set={name}={value}" for name, value in fields.items()]
        python = root / ".venv/bin/python" if root != checkout.ROOT else sys.executable
        before_s = processor_s()
        ended = subprocess.run(
            [python, "-m", "dbelief", "train", str(job), *extra, *options],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"a run failed: {ended.stderr[-500:]}")
        (summary,) = Path(folder).glob("*/summary.json")
        found, cpu_s = json.loads(summary.read_text()), processor_s() - before_s
        seen = [event for event in read_events(summary.with_name("events.jsonl")) if event["event"] == "progress"]
        settled = next((event for event in seen if event["epoch"] >= SETTLED), seen[-1])
        ended_s = found["wall_s"] + settled["elapsed_s"] - seen[-1]["elapsed_s"]
        return np.array([found["samples"], found["wall_s"], cpu_s]), np.array([settled["samples"], ended_s, 0.0])


def peer(python: Path, way: str, epochs: int) -> np.ndarray:
    """The same as `run` of a way of `step_peer.py`."""
    before_s = processor_s()
    words = [python, PEER, way, Path(os.environ["DBELIEF_DATA"]) / "mnist", epochs, WORKERS, PEER_BATCH]
    ended = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if ended.returncode:
        raise RuntimeError(f"{way} failed: {ended.stderr[-500:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return np.array([found["samples"], found["wall_s"], processor_s() - before_s])


def speed(whole: np.ndarray, start: np.ndarray) -> dict[str, float]:
    """Samples a second, and processor seconds for 1,000, between the start and the end of a run."""
    samples, wall_s, cpu_s = whole - start
    return {"samples_per_s": samples / wall_s, "cpu_s": 1e3 * cpu_s / samples}


def alone(job: Job, epochs: int) -> dict[str, float]:
    """The same of one process, which sends no message."""
    data, rng = load(job.data, job.folder), np.random.default_rng(0)
    train = data.train
    assert train is not None
    assert isinstance(job.strategy, Downpour)
    model, _ = build_model(job, data, select_backend("cpu"))
    drawn = model.parameters(rng)
    w = np.concatenate([values.ravel() for values in drawn.values()])
    rule = make_rule(job.strategy.rule.name, job.strategy.rule.model_dump(exclude={"name", "rate"}))
    gradient, rate = np.empty_like(w), np.float32(job.strategy.rule.rate)
    states = tuple(np.zeros_like(w) for _ in rule.state)
    views, out = views_of(drawn, w), views_of(drawn, gradient)
    warm_up(rule)
    size = job.strategy.batch
    buffer = train.buffer(size)
    began_s, began_cpu_s, samples = time.perf_counter(), time.process_time(), 0
    for _ in range(epochs):
        order = rng.permutation(len(train.inputs))
        for first in range(0, len(order), size):
            batch = train.gather(order[first : first + size], buffer)
            model.loss_and_gradient(views, batch, out)
            assert np.isfinite(gradient).all()
            apply_rule(rule, w, gradient, states, rate, 1)
            samples += len(batch.targets)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return {"samples_per_s": samples / took_s, "cpu_s": 1e3 * cpu_s / samples}


def at_once(job: Job, epochs: int, count: int) -> dict[str, float]:
    """The same of so many processes that do it at the same time."""
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), threadpool_limits, (1,)) as processes:
        rows = [row.result() for row in [processes.submit(alone, job, epochs) for _ in range(count)]]
    return {
        "samples_per_s": sum(row["samples_per_s"] for row in rows),
        "cpu_s": statistics.mean(row["cpu_s"] for row in rows),
    }


def views_of(shapes: Mapping[str, np.ndarray], flat: np.ndarray) -> dict[str, np.ndarray]:
    """Views of a flat vector by name, in the shapes of these arrays."""
    stops = np.cumsum([values.size for values in shapes.values()])
    parts = np.split(flat, stops[:-1])
    return {name: part.reshape(values.shape) for (name, values), part in zip(shapes.items(), parts, strict=True)}


def ratios(ours: list[Row], its: list[Row]) -> Row:
    """Of samples/s and processor time, the medians over the rounds of their ratios."""
    both = list(zip(ours, its, strict=True))
    names = [name for name in ("samples_per_s", "cpu_s") if name in its[0]]
    return {f"{name}_x": statistics.median(mine[name] / theirs[name] for mine, theirs in both) for name in names}


def compared(rows: Mapping[tuple[str, ...], list[Row]], shards: int) -> dict[tuple[str, ...], Row]:
    """Of each peer the ratios of shared memory with so many shards to it; of a way those to it in another checkout."""
    ours = rows[next(iter(WAYS)), str(shards), ""]
    peers = {key: ratios(ours, its) for key, its in rows.items() if key[0] in PEERS}
    found = {key: {f"ours_{name}": ratio for name, ratio in row.items()} for key, row in peers.items()}
    others = {key: rows.get((*key[:2], OTHER)) for key in rows if not key[2]}
    over = {key: ratios(rows[key], its) for key, its in others.items() if its}
    return found | {key: {f"over_other_{name}": ratio for name, ratio in row.items()} for key, row in over.items()}


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=7, help="of the longer run; 55,000 samples each")
    parser.add_argument("--short", type=int, default=SHORT, help="epochs of the run that is subtracted; 0: none is")
    parser.add_argument("--shards", type=options.numbers, default="1,2")
    parser.add_argument("--job", type=Path, default=JOB, help="the job's file")
    parser.add_argument("--strategy", default="", help="in place of the job's, as YAML")
    parser.add_argument("--beside", type=Path, help="another checkout, with a .venv of its own")
    parser.add_argument("--peers", type=Path, help="an interpreter that has torch and Ray")
    arguments = parser.parse_args()
    fields = fields_of(arguments.job, arguments.strategy)
    job = load_job(arguments.job, fields)
    downpour = job.strategy if isinstance(job.strategy, Downpour) else None
    checkouts = {"": checkout.ROOT} | ({OTHER: arguments.beside.resolve()} if arguments.beside else {})
    rows: dict[tuple[str, ...], list[dict[str, float]]] = {}

    def measured(key: tuple[str, ...], row: dict[str, float], floor_s: float = 0.0) -> None:
        if downpour is not None and "cpu_s" in row:
            row["beyond_ms"] = downpour.batch * (row["cpu_s"] - floor_s)
            row["of_floor"] = row["cpu_s"] / floor_s
        rows.setdefault(key, []).append(row)
        report.progress({"way": key, **row})

    for number in range(arguments.rounds):
        floor_s = 0.0
        if downpour is not None:
            floor = alone(job, SHORT)
            floor_s = floor["cpu_s"]
            measured(("one process", "", ""), floor, floor_s)
            measured((f"{WORKERS} at once", "", ""), at_once(job, SHORT, WORKERS), floor_s)
        turns = list(checkouts) if number % 2 == 0 else list(checkouts)[::-1]
        for shards, way, name in itertools.product(arguments.shards, WAYS, turns):
            asked = checkouts[name], arguments.job.resolve(), fields, WAYS[way], shards
            whole, start = run(*asked, arguments.epochs)
            start = run(*asked, arguments.short)[0] if arguments.short else start
            measured((way, str(shards), name), speed(whole, start), floor_s)
        for way in PEERS if arguments.peers else ():
            row = speed(*(peer(arguments.peers, way, epochs) for epochs in (arguments.epochs, arguments.short)))
            if way == "ray":
                del row["cpu_s"]
            measured((way, "", ""), row, floor_s)
    columns = ("way", "shards", "checkout", "samples/s", "cpu s", "beyond ms", "of floor")
    table = Table(*columns, title=f"{arguments.rounds} rounds")
    medians = {key: timing.medians(mine, *mine[0]) for key, mine in rows.items()}
    for key, row in medians.items():
        decimals = {"cpu_s": 4, "beyond_ms": 2, "of_floor": 2}
        cpu = (f"{row[name]:.{digits}f}" if name in row else "" for name, digits in decimals.items())
        table.add_row(*key, f"{row['samples_per_s']:,.0f}", *cpu)
    over = compared(rows, arguments.shards[0])
    report.show(
        table,
        {"rows": [{"way": key, "rounds": mine, **medians[key], **over.get(key, {})} for key, mine in rows.items()]},
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
