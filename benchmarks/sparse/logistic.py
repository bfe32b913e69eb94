"""Sparse logistic regression on a9a and rcv1 by FTRL on tables, beside one process, scikit-learn and Vowpal Wabbit.

    DBELIEF_DATA=... python -m benchmarks.sparse.logistic [--data a9a,rcv1] [--workers 1,2] [--seed 0] [--peers PYTHON]

a9a has 32,561 rows and 16,281 for the test, this sample of rcv1 1,000 and 500. Each way but the jobs takes the setting
of its grid that has the least log loss on every fifth row of the training set, trained on the others; then it trains on
all:

    one process    FTRL-Proximal in NumPy (`ftrl.py`): alpha of RATES, lambda_1 of L1, passes of PASSES; mini-batches of
                   64 rows of a9a, 16 of rcv1
    N workers      a job with that setting, on as many workers, processes that run free, and two shards (`ftrl_job.py`)
    scikit-learn   LogisticRegression by L-BFGS: C of PENALTIES
    VW, VW FTRL    Vowpal Wabbit by default, and by FTRL, with the Python of --peers, which has the package
                   vowpalwabbit: rates and passes of `vw_peer.py`

Seconds are those of the last training, of a job with the start and end of its processes. A job, or Vowpal Wabbit, that
takes 30 minutes is ended, and fails.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, runs
from benchmarks.harness.extras import needs_torch
from benchmarks.sparse import ftrl_job
from benchmarks.sparse.ftrl import FtrlModel, FtrlSetting
from benchmarks.sparse.logit_measures import accuracy, auc, log_loss
from dbelief.data import permutation
from dbelief.data.bags import SparseBatch, read_libsvm

PEER = Path(__file__).with_name("vw_peer.py")
RATES, L1, PASSES = (0.1, 0.3, 1.0, 3.0), (0.0, 0.3, 3.0), (1, 4, 16)
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
HELD = 5
"""Every fifth row is held out for the choice of a setting."""
Row = dict[str, Any]


class Source(NamedTuple):
    """Files below DBELIEF_DATA, of LIBSVM's text or VW's with one namespace f, and rows of a mini-batch."""

    train: str
    test: str
    size: int


SOURCES = {
    "a9a": Source("a9a/a9a", "a9a/a9a.t", 64),
    "rcv1": Source("rcv1/rcv1_small.dat", "rcv1/rcv1_small_test.data", 16),
}


class Parts(NamedTuple):
    """A data set as LIBSVM text; beside each file is one of VW's text, named *.vw.

    `fit` and `held` are parts of `train`; `keys`: more than the largest one.
    """

    fit: Path
    held: Path
    train: Path
    test: Path
    size: int
    keys: int


class Choice(NamedTuple):
    """A setting of FTRL, and passes over the rows."""

    setting: FtrlSetting
    passes: int

    def __str__(self) -> str:
        return f"alpha {self.setting.rate:g}, lambda_1 {self.setting.l1:g}, passes {self.passes}"


def prepared(source: Source, data: Path, folder: Path) -> Parts:
    """Write the parts of a data set into a folder."""
    train, test = ([_libsvm(line) for line in (data / name).read_text().splitlines()] for name in source[:2])
    parts = {
        "fit": [line for number, line in enumerate(train) if number % HELD != HELD - 1],
        "held": train[HELD - 1 :: HELD],
        "train": train,
        "test": test,
    }
    for name, lines in parts.items():
        (folder / f"{name}.svm").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{name}.vw").write_text("".join(line.replace(" ", " |f ", 1) + "\n" for line in lines))
    keys = 1 + max(int(word.partition(":")[0]) for line in (*train, *test) for word in line.split()[1:])
    fit, held, whole, tested = (folder / f"{name}.svm" for name in parts)
    return Parts(fit, held, whole, tested, source.size, keys)


def _libsvm(line: str) -> str:
    """A row of either text as LIBSVM's, with a label of -1 or 1."""
    label, _, features = line.replace("|f ", "").strip().partition(" ")
    return f"{int(label)} {features}"


def batches_of(file: Path, size: int) -> list[SparseBatch]:
    return list(read_libsvm(file, size))


def labels_of(file: Path) -> np.ndarray:
    """(n,) labels, 0 or 1."""
    return np.concatenate([batch.labels > 0 for batch in batches_of(file, 1_000)]).astype(np.float32)


def passes_of(
    batches: list[SparseBatch], keys: int, setting: FtrlSetting, seed: int, count: int
) -> Iterator[FtrlModel]:
    """The model after each pass, mini-batches in a job's order."""
    model = FtrlModel(keys, setting)
    for epoch in range(count):
        for number in permutation(len(batches), seed, epoch):
            model.step(batches[number])
        yield model


def logits_of(model: FtrlModel, batches: list[SparseBatch]) -> np.ndarray:
    return np.concatenate([model.logits(batch) for batch in batches])


def chosen(parts: Parts, seed: int) -> Choice:
    """The setting of FTRL with the least log loss on what is held out."""
    fit, held, labels = batches_of(parts.fit, parts.size), batches_of(parts.held, 1_000), labels_of(parts.held)
    tries = []
    for rate, l1 in product(RATES, L1):
        setting = FtrlSetting(rate, l1=l1)
        for number, model in enumerate(passes_of(fit, parts.keys, setting, seed, max(PASSES)), 1):
            if number in PASSES:
                tries.append((log_loss(logits_of(model, held), labels), Choice(setting, number)))
    return min(tries)[1]


def by_one_process(parts: Parts, choice: Choice, seed: int) -> np.ndarray:
    """Logits of the test set."""
    batches = batches_of(parts.train, parts.size)
    *_, model = passes_of(batches, parts.keys, choice.setting, seed, choice.passes)
    return logits_of(model, batches_of(parts.test, 1_000))


def by_job(parts: Parts, choice: Choice, workers: int, seed: int) -> ftrl_job.Trained:
    """A job, whose logits are checked."""
    units = len(batches_of(parts.train, parts.size))
    fields = ftrl_job.fields_of(choice.setting, units, choice.passes, workers, seed)
    trained = ftrl_job.train(fields, ["libsvm", str(parts.size), str(parts.train), str(parts.test)])
    ftrl_job.check_loss(trained, log_loss(trained.logits, labels_of(parts.test)))
    return trained


def by_scikit_learn(parts: Parts) -> tuple[str, np.ndarray, float]:
    """Setting, logits of the test set, and seconds of the last training."""
    from sklearn.datasets import load_svmlight_files
    from sklearn.linear_model import LogisticRegression

    files = [str(file) for file in parts[:4]]
    x_fit, y_fit, x_held, _, x, y, x_test, _ = load_svmlight_files(files, n_features=parts.keys, zero_based=True)
    held = labels_of(parts.held)

    def trained(penalty: float, inputs: Any, labels: Any) -> Any:
        return LogisticRegression(C=penalty, max_iter=10_000).fit(inputs, labels)

    losses = {c: log_loss(trained(c, x_fit, y_fit).decision_function(x_held), held) for c in PENALTIES}
    penalty = min(PENALTIES, key=losses.__getitem__)
    began_s = time.monotonic()
    model = trained(penalty, x, y)
    return f"C {penalty:g}", model.decision_function(x_test), time.monotonic() - began_s


def by_vw(run: runs.Run, python: Path, parts: Parts, seed: int) -> dict[str, Any]:
    """Setting, seconds and logits of each way of `vw_peer.py`; where it fails none, and a line that says why."""
    files = (str(file.with_suffix(".vw")) for file in parts[:4])
    process = run.start_program("peer", [str(python), str(PEER), str(seed), *files])
    code, said = runs.wait_for(process.poll, "Vowpal Wabbit", ftrl_job.LIMIT_S), run.output("peer")
    if code:
        report.progress({"left out": "Vowpal Wabbit", "reason": said[-1] if said else f"exit code {code}"})
        return {}
    found: dict[str, Any] = json.loads(said[-1])
    return found


def measure(
    run: runs.Run, name: str, source: Source, data: Path, workers: list[int], seed: int, peers: Path | None
) -> list[Row]:
    """A row for each way on a data set, with files in the folder of a run."""
    parts = prepared(source, data, run.folder)
    labels, rows = labels_of(parts.test), list[Row]()

    def add(way: str, setting: str, logits: np.ndarray, seconds: float) -> None:
        figures = {one.__name__: one(logits, labels) for one in (accuracy, auc, log_loss)}
        rows.append({"data": name, "way": way, "setting": setting, **figures, "seconds": seconds})
        report.progress(rows[-1])

    choice = chosen(parts, seed)
    began_s = time.monotonic()
    logits = by_one_process(parts, choice, seed)
    add("one process", str(choice), logits, time.monotonic() - began_s)
    for count in workers:
        trained = by_job(parts, choice, count, seed)
        add(f"{count} workers" if count > 1 else "1 worker", str(choice), trained.logits, trained.seconds)
    add("scikit-learn", *by_scikit_learn(parts))
    for way, found in (by_vw(run, peers, parts, seed) if peers is not None else {}).items():
        add(way, found["setting"], np.array(found["logits"]), found["seconds"])
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--data", type=options.words, default=list(SOURCES))
    parser.add_argument("--workers", type=options.numbers, default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", type=Path, help="an interpreter that has vowpalwabbit")
    arguments = parser.parse_args()
    if unknown := set(arguments.data) - SOURCES.keys():
        parser.error(f"no data set is called {min(unknown)!r}, only {', '.join(SOURCES)}")
    if not (data := os.environ.get("DBELIEF_DATA")):
        parser.error("DBELIEF_DATA is not set: it names the folder that has a9a and rcv1")
    needs_torch()
    rows = []
    for name in arguments.data:
        with runs.temporary_run("peer") as run:
            rows += measure(run, name, SOURCES[name], Path(data), arguments.workers, arguments.seed, arguments.peers)
    table = Table("data", "way", "setting", "accuracy, %", "AUC", "log loss", "s")
    for row in rows:
        figures = f"{100 * row['accuracy']:.2f}", f"{row['auc']:.4f}", f"{row['log_loss']:.4f}", f"{row['seconds']:.1f}"
        table.add_row(row["data"], row["way"], row["setting"], *figures)
    report.show(table, {"rows": rows}, width=120)


if __name__ == "__main__":
    main()
