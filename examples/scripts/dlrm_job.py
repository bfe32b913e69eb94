"""A deep learning recommendation model (Naumov et al. 2019) on drawn clicks: python dlrm.py [SAMPLES] [SEED] [EPOCHS].

A sample has 13 numbers and a key in each of 26 columns. Half of the columns share a table of a million rows, the others
one of five million: each column has a range of its keys.
"""

import sys
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dbelief

NUMBERS, COLUMNS, WIDTH, BINS = 13, 13, 16, 128
ROWS = {"small": 1_000_000, "large": 5_000_000}
BATCH, TEST = 512, 20_000
FIRST, SECOND = torch.triu_indices(1 + len(ROWS) * COLUMNS, 1 + len(ROWS) * COLUMNS, 1)
UNIT = 1 << 20  # of the sum of log losses: whole numbers add up to the same in any order


def drawn(samples, seed):
    """Numbers, keys, clicks, and the probability of each click, which follows from its numbers and keys.

    The keys of a column follow Zipf's law: of its r keys the k-th comes with probability ln(1 + 1/k) / ln r.
    """
    truth, own = torch.Generator().manual_seed(1_000_003), torch.Generator().manual_seed(seed)
    numbers = torch.randn(samples, NUMBERS, generator=own)
    logits, keys = numbers @ (0.3 * torch.randn(NUMBERS, generator=truth)) - 1, []
    for rows in ROWS.values():
        each = rows // COLUMNS
        ranks = (each ** torch.rand(samples, COLUMNS, generator=own, dtype=torch.float64)).long() - 1
        keys.append(ranks + each * torch.arange(COLUMNS))
        effects = torch.randn(rows, generator=truth)[keys[-1]]
        logits += 0.3 * effects.sum(1) + 0.5 * effects[:, 0] * effects[:, 1]
    probabilities = logits.sigmoid()
    return numbers, torch.cat(keys, 1), torch.bernoulli(probabilities, generator=own), probabilities


class Clicks(Dataset):
    """Drawn samples; a mini-batch is taken at once."""

    def __init__(self, samples, seed):
        *self.parts, _ = drawn(samples, seed)

    def __len__(self):
        return len(self.parts[0])

    def __getitems__(self, places):
        return [part[places] for part in self.parts]


def perceptron(*widths):
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """Logits of clicks, from the dot products of the columns' rows and of what a perceptron makes of the numbers."""

    def __init__(self):
        super().__init__()
        self.bottom = perceptron(NUMBERS, 64, WIDTH)
        self.top = perceptron(WIDTH + len(FIRST), 64, 1)
        self.register_buffer("sums", no_sums())  # of predictions before the steps
        self.tables = nn.ModuleList([dbelief.torch.EmbeddingBag(job, name) for name in ROWS])

    def forward(self, numbers, keys):
        bottom = self.bottom(numbers)
        vectors = [bottom[:, None]]
        for table, own in zip(self.tables, keys.split(COLUMNS, 1), strict=True):  # all columns of a table at once
            vectors.append(table(own.reshape(-1, 1)).view(-1, COLUMNS, WIDTH))
        vectors = torch.cat(vectors, 1)
        products = (vectors @ vectors.transpose(1, 2))[:, FIRST, SECOND]
        return self.top(torch.cat([bottom, products], 1)).squeeze(1)


def no_sums():
    return torch.zeros(2 * BINS + 1, dtype=torch.int64)


def add(sums, logits, clicks):
    """Add samples to sums: in each bin of logits those without and with a click, and the sum of log losses."""
    logits = logits.detach()
    bins = ((logits + 8) * (BINS / 16)).long().clamp(0, BINS - 1)
    sums[:-1] += torch.bincount(bins + BINS * clicks.long(), minlength=2 * BINS)
    sums[-1] += (UNIT * nn.functional.binary_cross_entropy_with_logits(logits, clicks, reduction="sum")).long()


def measures(sums):
    """Mean log loss and AUC."""
    others, clicks = sums[:-1].view(2, BINS).double()
    below = others.cumsum(0) - others / 2
    auc = (clicks * below).sum() / (clicks.sum() * others.sum())
    return sums[-1].item() / UNIT / sums[:-1].sum().item(), auc.item()


def score(model, test):
    found = no_sums()
    with torch.no_grad():
        for numbers, keys, clicks in DataLoader(test, 2_000, collate_fn=tuple):
            add(found, model(numbers, keys), clicks)
    (loss, auc), (progressive_log_loss, progressive_auc) = measures(found), measures(model.sums)
    return {
        "loss": loss,
        "auc": auc,
        "progressive_log_loss": progressive_log_loss,
        "progressive_auc": progressive_auc,
    }


def main(samples=200_000, seed=0, epochs=1):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    train, test = Clicks(samples, 2 * seed), Clicks(TEST, 2 * seed + 1)
    model = Dlrm()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    sync = dbelief.torch.Sync(job, model, optimizer)
    loader = DataLoader(train, batch_sampler=job.sampler(train, BATCH), collate_fn=tuple)
    for _ in range(epochs):
        for numbers, keys, clicks in loader:
            logits = model(numbers, keys)
            add(model.sums, logits, clicks)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
            loss.backward()
            sync.step(loss, samples=len(clicks))
    print(sync.evaluate(score, test))


if __name__ == "__main__":
    with dbelief.join() as job:
        main(*map(int, sys.argv[1:]))
