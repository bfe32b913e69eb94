"""Logistic regression by FTRL, with a weight for each key in a table: see click_ftrl.yaml.

    dbelief run --job click_ftrl.yaml --workers 2 click_ftrl.py TRAIN TEST

TRAIN and TEST are LIBSVM text, labels -1 and 1 or 0 and 1. The progressive figures are of all replicas together: each
row of TRAIN is predicted before a replica trains on it.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

import dbelief
from dbelief.data.bags import read_libsvm
from dbelief.evaluation.click_measures import ClickMeasures

ROWS, BINS = 64, 2048


class Clicks(nn.Module):
    """Logits of clicks. The sums of the measures are a buffer, of which a job adds up the changes of all replicas."""

    def __init__(self, job):
        super().__init__()
        self.weights = dbelief.torch.EmbeddingBag(job, "weights")
        self.bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("sums", torch.zeros(ClickMeasures.size(BINS), dtype=torch.int64))

    def forward(self, bag):
        return self.weights(bag.keys, bag.offsets, bag.values).squeeze(1) + self.bias

    def progressive(self):
        return ClickMeasures(BINS, state=self.sums.numpy())


def score(model, test):
    """Figures of the job; their names are those of `evaluate.metrics`."""
    found, before = ClickMeasures(), model.progressive()
    for batch in test:
        batch = batch.mapped(torch.from_numpy)
        found.add(model(batch.bags["features"]).sigmoid(), batch.labels, batch.weights)
    figures = {
        "loss": found.overall.log_loss,
        "auc": found.auc,
        "progressive_log_loss": before.overall.log_loss,
        "progressive_auc": before.auc,
    }
    print(*(f"{name} {value:.5f}" for name, value in figures.items()))
    return figures


def main():
    train, test = read_libsvm(sys.argv[1], ROWS), read_libsvm(sys.argv[2], 1000)
    units = dbelief.torch.UnitDataset(train)
    with dbelief.join() as job:
        model = Clicks(job)
        sync = dbelief.torch.Sync(job, model, torch.optim.SGD(model.parameters(), lr=0.05))
        for batch in DataLoader(units, batch_sampler=job.sampler(units, 1), collate_fn=units.collate):
            logits, clicks = model(batch.bags["features"]), (batch.labels > 0).float()
            model.progressive().add(logits.detach().sigmoid(), clicks, batch.weights)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks, batch.weights)
            loss.backward()
            sync.step(loss, samples=1)  # one unit of the stream: a mini-batch
        sync.evaluate(score, test)


if __name__ == "__main__":
    main()
