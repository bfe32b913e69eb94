"""What ranks have and see of a block-local layer, tile by tile and neuron by neuron: no arithmetic of windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import permutations, product
from typing import Any

import numpy as np

from dbelief.nn import Batch
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.partition import Grid
from worker.comm import Communicator, run_ranks
from worker.comm.tracing import TracingEngine
from worker.partition import build_partitioned

Places = list[set[tuple[int, int]]]
"""By rank."""
Counts = Counter[tuple[int, int]]
"""By (from, to)."""


def nothing(ranks: int) -> Places:
    return [set() for _ in range(ranks)]


def parts(height: int, width: int, grid: Grid) -> Places:
    """An image cut evenly: of n cells the i-th is in part floor(((i + 1) P - 1) / n), the last that begins by then."""
    found = nothing(grid.size)
    for i, j in product(range(height), range(width)):
        found[((i + 1) * grid.rows - 1) // height * grid.columns + ((j + 1) * grid.columns - 1) // width].add((i, j))
    return found


def under(places: Places, size: int) -> Places:
    """What windows of so many cells a side see that begin there."""
    return [{(y + v, x + u) for y, x in mine for v, u in product(range(size), repeat=2)} for mine in places]


class Cells:
    """Of one layer: tiles that ranks see and whose error they count, neurons that they have and pool; pixels they see.

    `passages` gives, for a pair of ranks, the bytes of each message that the layer's blocks need.
    """

    def __init__(self, image: tuple[int, int, int], eq1: Eq1, grid: Grid) -> None:
        b, pool, g = eq1.block, eq1.pool, eq1.window // eq1.block
        rows, columns = image[0] // b, image[1] // b
        nr, nc = rows - g + 1, columns - g + 1

        blocks = parts(nr, nc, grid)
        rank_of = {place: rank for rank, mine in enumerate(blocks) for place in mine}
        self.sees, self.counts = under(blocks, g), nothing(grid.size)
        for i, j in product(range(rows), range(columns)):
            self.counts[rank_of[min(i, nr - 1), min(j, nc - 1)]].add((i, j))
        self.has, self.pixels = (under([{(b * i, b * j) for i, j in t} for t in of], b) for of in (blocks, self.sees))
        inside = [{(y, x) for y, x in mine if y + pool <= nr * b and x + pool <= nc * b} for mine in self.has]
        self.pools = under(inside, pool)
        self._tile, self._place = b * b * image[2], eq1.maps

    def passages(self, i: int, j: int, itemsize: int) -> list[int]:
        tile, place = self._tile * itemsize, self._place * itemsize
        return [
            len(self.sees[i] & self.counts[j]) * tile,
            len(self.counts[i] & self.sees[j]) * tile,
            len(self.has[i] & self.pools[j]) * place,
            len(self.pools[i] & self.has[j]) * place,
        ]


def shared(i: int, j: int, alphas: int, ranks: int, itemsize: int) -> list[int]:
    """Bytes of alphas from the first rank, and of the loss and alphas' slopes, which each rank sums a piece of."""
    pieces = np.diff([part * (1 + alphas) // ranks for part in range(ranks + 1)])
    return [itemsize * alphas if i == 0 else 0, int(pieces[j]) * 8, int(pieces[i]) * 8]


def totals(grid: Grid, passages: Callable[[int, int], Iterable[int]]) -> tuple[Counts, Counts]:
    """Messages and bytes of all ordered pairs of ranks; of 0 bytes there is no message."""
    messages, sent = Counts(), Counts()
    for pair in permutations(range(grid.size), 2):
        for nbytes in passages(*pair):
            sent[pair] += nbytes
            messages[pair] += nbytes > 0
    return +messages, +sent


def step(comm: Communicator, model: Any, grid: Grid, batch: Batch) -> None:
    """One from parameters of 0: what is sent does not depend on numbers."""
    mine = build_partitioned(model, comm, grid)
    flat, gradient = (np.zeros(mine.layout.size, batch.inputs.dtype) for _ in range(2))
    views, out = (mine.layout.views(vector, comm.rank) for vector in (flat, gradient))
    mine.loss_and_gradient(views, batch, out)


def traffic(model: Callable[[], Any], grid: Grid, batch: Batch) -> tuple[Counts, Counts]:
    """Messages and bytes of a step, by (from, to), as tracing engines count them."""

    def rank(comm: Communicator) -> TracingEngine:
        engine = TracingEngine(comm.engine)
        step(Communicator(engine), model(), grid, batch)
        return engine

    engines = run_ranks(grid.size, rank)
    return sum((e.messages for e in engines), Counter()), sum((e.sent_bytes for e in engines), Counter())
