"""Updates of rows of a table, on one core: a shard's, and beside it torch's EmbeddingBag with its optimiser.

    python -m benchmarks.shards.row_updates [--rows 2000000] [--keys 50000] [--rounds 15]

Each push has as many distinct keys, drawn uniformly or by Zipf's law (exponent 1.2), and a gradient of width 16 for
each. Both take turns with the same keys and gradients, in processor time:

    push          what a shard does with the rows of a push, in eight buckets: admission, ledger, keys, rule
    and sent      with the client's part of it: keys sorted by bucket, and packed
    torch         `optimizer.step()` on the sparse gradient that a backward pass has made
    and backward  with that pass

Adagrad of torch keeps a number for each of a row; `row-adagrad` has no like there, and is held against it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.harness import options, report, timing
from dbelief.core.push import Push, Pusher
from dbelief.optim import make_row_rule, make_rule
from dbelief.sparse.row_hash import table_salt
from dbelief.sparse.table import SparseTable
from ps_server.store.shard import Shard

WIDTH, BUCKETS, RATE = 16, 8, np.float32(0.05)
PUSHER = Pusher(0, 1)
RULES = ("sgd", "adagrad", "lazy-adam", "row-adagrad")
NONE = np.zeros(0, np.float32)
Keys = Callable[[np.random.Generator], np.ndarray]


class OurTable:
    """A shard with all buckets of a table, each row of which is there."""

    def __init__(self, rule: str, rows: int) -> None:
        self.table = SparseTable("user", WIDTH, table_salt(0, "user"), 0.01, float(RATE), 0, BUCKETS)
        tables = {self.table: make_row_rule(rule, {})}
        self.shard = Shard(self.table.spans(0), make_rule("sgd", {}), tables=tables)
        self.shard.make_ready()
        self._sequence = 0
        for first in range(0, rows, 1 << 18):
            keys = np.arange(first, min(rows, first + (1 << 18)))
            packed: dict[int, np.ndarray] = {}
            self.pack_into(packed, keys, np.zeros((keys.size, WIDTH), np.float32))
            self.push(packed)

    def pack_into(self, packed: dict[int, np.ndarray], keys: np.ndarray, gradients: np.ndarray) -> None:
        """Write what a client sends to each bucket."""
        packed |= self.table.pack(keys, gradients)

    def push(self, packed: dict[int, np.ndarray]) -> None:
        """Push to all buckets."""
        self._sequence += 1
        push = Push(PUSHER, self._sequence, RATE)
        for index in self.shard.segments:
            self.shard.push(push, index, packed.get(index, NONE))


class TorchTable:
    """An EmbeddingBag of as many rows, and its optimiser."""

    def __init__(self, rule: str, rows: int) -> None:
        import torch

        self._torch: Any = torch
        self._module = torch.nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True)
        made = {"sgd": torch.optim.SGD, "lazy-adam": torch.optim.SparseAdam}.get(rule, torch.optim.Adagrad)
        self.optimizer: Any = made(self._module.parameters(), lr=float(RATE))

    def forward(self, keys: np.ndarray) -> Any:
        """The rows of these keys, a bag each."""
        return self._module(self._torch.from_numpy(keys).view(-1, 1))

    def backward(self, rows: Any, gradients: np.ndarray) -> None:
        """Make the sparse gradient."""
        self.optimizer.zero_grad()
        rows.backward(self._torch.from_numpy(gradients))


def uniform(rows: int, count: int) -> Keys:
    """Distinct keys, each as likely as another."""
    return lambda rng: rng.choice(rows, count, replace=False, shuffle=False)


def zipf(rows: int, count: int) -> Keys:
    """Distinct keys among draws by Zipf's law, as many of them as it takes."""

    def keys(rng: np.random.Generator) -> np.ndarray:
        drawn = np.unique(rng.zipf(1.2, 8 * count) - 1)
        return rng.permutation(drawn[drawn < rows])[:count]

    return keys


def measured(rule: str, rows: int, draw: Keys, rounds: int) -> dict[str, float]:
    """Median nanoseconds a row of each part, and the ratios, medians over the rounds."""
    ours, theirs, rng = OurTable(rule, rows), TorchTable(rule, rows), np.random.default_rng(1)
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        keys = draw(rng)
        gradients = rng.standard_normal((keys.size, WIDTH), dtype=np.float32)
        forward = theirs.forward(keys)
        packed: dict[int, np.ndarray] = {}
        parts: dict[str, Callable[[], object]] = {
            "sent": functools.partial(ours.pack_into, packed, keys, gradients),
            "push": functools.partial(ours.push, packed),
            "backward": functools.partial(theirs.backward, forward, gradients),
            "torch": theirs.optimizer.step,
        }
        each = {name: 1e9 * timing.seconds(part, time.process_time) / keys.size for name, part in parts.items()}
        whole, whole_torch = each["sent"] + each["push"], each["backward"] + each["torch"]
        found.append({**each, "x": each["torch"] / each["push"], "whole_x": whole_torch / whole})
    return timing.medians(found[1:], *found[0])


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    table = Table("rule", "keys", "push, ns a row", "and sent", "torch", "and backward", "torch's over ours", "whole")
    rows = []
    for rule in RULES:
        for name, draw in (("uniform", uniform), ("zipf", zipf)):
            row = measured(rule, arguments.rows, draw(arguments.rows, arguments.keys), 1 + arguments.rounds)
            rows.append({"rule": rule, "keys": name, **row})
            report.progress(rows[-1])
            whole = row["push"] + row["sent"], row["torch"] + row["backward"]
            times = (row["push"], whole[0], row["torch"], whole[1])
            table.add_row(rule, name, *(f"{ns:.0f}" for ns in times), f"{row['x']:.2f}", f"{row['whole_x']:.2f}")
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    with threadpool_limits(1):
        main()
