"""Logistic regression by FTRL as a replica of a job: a table has a weight for each key, and the bias has Adagrad.

    dbelief run --job JOB ftrl_script.py LOGITS clicks SEED SIZE UNITS TEST_UNITS
    dbelief run --job JOB ftrl_script.py LOGITS libsvm SIZE TRAIN TEST

The units of the job are mini-batches of SIZE samples, and the loss of a step is the sum over one, as in `ftrl.py`. The
evaluation writes the logits of the test set to the file LOGITS, in NumPy's format.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dbelief
from benchmarks.sparse.click_log import ClickLog
from benchmarks.sparse.logit_measures import log_loss
from dbelief.data.bags import read_libsvm

LOGITS, SOURCE, *WORDS = sys.argv[1:]


class LogisticModel(torch.nn.Module):  # type: ignore[misc]
    """Logits of mini-batches."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.weights = dbelief.torch.EmbeddingBag(job, "weights")
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, bag: Any) -> Any:
        """(n,) logits."""
        return self.weights(bag.keys, bag.offsets, bag.values).squeeze(1) + self.bias


def streams() -> tuple[Any, Any]:
    """Training and test set, in units."""
    if SOURCE == "clicks":
        seed, size, units, test_units = map(int, WORDS)
        return ClickLog(seed, size, 0, units), ClickLog(seed, size, units, test_units)
    size, (train, test) = int(WORDS[0]), WORDS[1:]
    return read_libsvm(train, size), read_libsvm(test, size)


def score(model: Any, test: Any) -> float:
    """Log loss; the logits are written."""
    batches = [batch for unit in test.units for batch in test.read(unit)]
    logits = np.concatenate([model(batch.mapped(torch.from_numpy).bags["features"]).numpy() for batch in batches])
    np.save(LOGITS, logits)
    return log_loss(logits, np.concatenate([batch.labels > 0 for batch in batches]))


def main() -> None:
    """Train as a replica."""
    train, test = streams()
    units = dbelief.torch.UnitDataset(train)
    with dbelief.join() as job:
        model = LogisticModel(job)
        bias_rate = job.job.strategy.rule.rate
        sync = dbelief.torch.Sync(job, model, torch.optim.Adagrad(model.parameters(), lr=bias_rate, eps=0))
        for batch in DataLoader(units, batch_sampler=job.sampler(units, 1), collate_fn=units.collate):
            logits, clicks = model(batch.bags["features"]), (batch.labels > 0).float()
            loss = binary_cross_entropy_with_logits(logits, clicks, reduction="sum")
            loss.backward()
            sync.step(loss, samples=1, reduction="sum")
        sync.evaluate(score, test)


main()
