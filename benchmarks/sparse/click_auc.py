"""AUC of sparse logistic regression by FTRL on 1, 2 and 4 workers, beside one process and the best possible.

    python -m benchmarks.sparse.click_auc [--samples 10000000] [--workers 1,2,4] [--seed 0] [--rate 0.05]

A log of clicks with eight columns of ids, 1.2 million keys, is drawn by a seed (`click_log.py`); the 500,000 samples
behind those that are trained on are the test set. All ways make one pass in mini-batches of 2,000, with the same alpha,
`--rate`, and beta 1:

    Bayes          the true probabilities
    one process    FTRL-Proximal in NumPy (`ftrl.py`), without processes of dbelief; units in the job's order
    N workers      a job with as many workers, processes that run free, and two shards (`ftrl_job.py`)

The AUC is that of the true probabilities of the test set, the mean over all labels that they may have
(`logit_measures.py`); `auc_of_labels` is that of one draw of labels. Wanted: at most 0.002 below Bayes, and each number
of workers within 0.001 of the one process. Tuned on seed 0: the rate. A job that takes 30 minutes is ended, and fails.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report
from benchmarks.harness.extras import needs_torch
from benchmarks.sparse import ftrl_job
from benchmarks.sparse.click_log import KEYS, ClickLog, Clicks
from benchmarks.sparse.ftrl import FtrlModel, FtrlSetting
from benchmarks.sparse.logit_measures import auc, log_loss
from dbelief.data import permutation

SIZE = 2_000
TEST_UNITS = 250
RATE = 0.05
Row = dict[str, Any]


def figures_of(logits: np.ndarray, test: Clicks) -> Row:
    """Measures of logits on the test set."""
    p = 1 / (1 + np.exp(-test.logits))
    return {"auc": auc(logits, p), "auc_of_labels": auc(logits, test.labels), "log_loss": log_loss(logits, p)}


def one_process(log: ClickLog, setting: FtrlSetting, seed: int, test: Clicks) -> np.ndarray:
    """Logits of the test set, of the model that one pass over the log has trained."""
    model, units = FtrlModel(KEYS, setting), log.units
    for number in permutation(len(units), seed, 0):
        for batch in log.read(units[number]):
            model.step(batch)
    return model.logits(test.batch)


def measure(units: int, size: int, test_units: int, workers: list[int], seed: int, setting: FtrlSetting) -> list[Row]:
    """A row for each way."""
    log, test = ClickLog(seed, size, 0, units), ClickLog(seed, size, units, test_units).whole()
    best, rows = figures_of(test.logits, test), list[Row]()

    def add(way: str, found: Row, **more: float) -> None:
        rows.append({"way": way, **found, "below_bayes": best["auc"] - found["auc"], **more})
        report.progress(rows[-1])

    add("Bayes", best, clicks=float(test.labels.mean()))
    began_s = time.monotonic()
    one = figures_of(one_process(log, setting, seed, test), test)
    add("one process", one, seconds=time.monotonic() - began_s)
    for count in workers:
        words = ["clicks", *map(str, (seed, size, units, test_units))]
        trained = ftrl_job.train(ftrl_job.fields_of(setting, units, 1, count, seed), words)
        ftrl_job.check_loss(trained, log_loss(trained.logits, test.labels))
        found, staleness = figures_of(trained.logits, test), trained.summary["staleness_mean"]
        beside = found["auc"] - one["auc"]
        add("workers", found, workers=count, beside_one=beside, staleness=staleness, seconds=trained.seconds)
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--workers", type=options.numbers, default=[1, 2, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE)
    arguments = parser.parse_args()
    needs_torch()
    units = -(-arguments.samples // SIZE)
    rows = measure(units, SIZE, TEST_UNITS, arguments.workers, arguments.seed, FtrlSetting(arguments.rate))
    names = ("AUC", "below Bayes", "beside one process", "of labels", "log loss", "staleness", "s")
    table = Table("way", "workers", *names)
    for row in rows:
        cells = [
            f"{row[name]:{form}}" if name in row else ""
            for name, form in (
                ("auc", ".5f"),
                ("below_bayes", ".5f"),
                ("beside_one", "+.5f"),
                ("auc_of_labels", ".5f"),
                ("log_loss", ".5f"),
                ("staleness", ".2f"),
                ("seconds", ".0f"),
            )
        ]
        table.add_row(row["way"], str(row.get("workers", "")), *cells)
    report.show(table, {"samples": units * SIZE, "rows": rows}, width=120)


if __name__ == "__main__":
    main()
