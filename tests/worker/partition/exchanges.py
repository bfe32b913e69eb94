"""A distributed array against the whole one, as a function of one rank; on threads here and by `mpiexec` elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from dbelief.partition import Grid, Window
from worker.comm import Communicator
from worker.comm.tracing import TracingEngine
from worker.partition import DistributedArray

EDGE = 6
"""How far beyond the array an input may reach; references are that much larger on all sides."""


@dataclass(frozen=True)
class Case:
    """What all ranks agree on: windows over two axes of an array (before, h, w, after)."""

    height: int
    width: int
    before: int
    after: int
    outputs: tuple[Window, ...]
    inputs: tuple[Window, ...]
    zero: tuple[Window, ...]
    dtype: Any
    seed: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.before, self.height, self.width, self.after)

    def blocks(self, windows: tuple[Window, ...], seed: int) -> list[np.ndarray]:
        """Every rank's array, drawn alike by all."""
        rng = np.random.default_rng([self.seed, seed])
        shapes = [(self.before, *window.shape, self.after) for window in windows]
        return [(100 * rng.standard_normal(shape)).astype(self.dtype) for shape in shapes]

    def moved(self, sources: tuple[Window, ...], blocks: list[np.ndarray], target: Window) -> np.ndarray:
        """What a rank gets: copied out of the whole array, or summed into it by np.add.at, rank after rank."""
        shape = (self.before, self.height + 2 * EDGE, self.width + 2 * EDGE, self.after)
        whole = np.zeros(shape, self.dtype)
        sums = any(mask.any() for one, other in combinations(sources, 2) for mask in [cells(one) & cells(other)])
        for window, block in zip(sources, blocks, strict=True):
            if sums:
                np.add.at(whole, _index(window), block)
            else:
                whole[_index(window)] = block
        taken: np.ndarray = whole[_index(target)]
        return taken


def _index(window: Window) -> Any:
    rows, columns = (slice(a + EDGE, b + EDGE) for a, b in zip(window.start, window.stop, strict=True))
    return (slice(None), rows, columns)


def cells(window: Window, side: int = 64) -> np.ndarray:
    """The window as marks on a board, for counting without any arithmetic of windows."""
    board = np.zeros((side, side), bool)
    board[_index(window)[1:]] = True
    return board


def check(comm: Communicator, case: Case) -> dict[str, Any]:
    """Gather, its transpose, their inner products and their traffic on one rank; gives the bits for comparison."""
    engine = TracingEngine(comm.engine)
    array = DistributedArray(
        Communicator(engine, comm.deadline_s),
        case.shape,
        case.dtype,
        case.outputs,
        case.inputs,
        first_axis=1,
        zero=case.zero,
    )
    x, y = case.blocks(case.outputs, 0), case.blocks(case.inputs, 1)
    mine, ours = x[comm.rank], y[comm.rank]

    for _ in range(2):  # the second time in buffers that the first has used, and the caller has spoilt
        engine.messages.clear()
        engine.sent_bytes.clear()
        gathered = array.gather(mine)
        assert gathered.tobytes() == case.moved(case.outputs, x, case.inputs[comm.rank]).tobytes()
        _check_traffic(engine, case, case.outputs, case.inputs)

        engine.messages.clear()
        engine.sent_bytes.clear()
        array.scatter_add.start(ours)
        added = array.scatter_add.finish()
        assert added.tobytes() == case.moved(case.inputs, y, case.outputs[comm.rank]).tobytes()
        _check_traffic(engine, case, case.inputs, case.outputs)

        bits = {"gathered": gathered.tobytes(), "added": added.tobytes()}
        if case.dtype == np.float64:
            _check_adjoint(comm, gathered, ours, mine, added)
        gathered.fill(7)
        added.fill(7)

    array.gather.start(mine)
    early = array.gather.ready.within(array.input), array.gather.ready.within(array.output)
    assert array.gather.target[early[0]].tobytes() == mine[early[1]].tobytes()
    assert array.gather.finish().tobytes() == bits["gathered"]
    return bits


def _check_traffic(engine: TracingEngine, case: Case, sources: tuple[Window, ...], targets: tuple[Window, ...]) -> None:
    each = case.before * case.after * np.dtype(case.dtype).itemsize
    expected = Counter(
        {
            (engine.rank, peer): int((cells(sources[engine.rank]) & cells(targets[peer])).sum()) * each
            for peer in range(engine.size)
            if peer != engine.rank
        }
    )
    assert engine.sent_bytes == +expected
    assert engine.messages == Counter(list(+expected))


def _check_adjoint(comm: Communicator, gathered: Any, y: Any, x: Any, added: Any) -> None:
    """<gather(x), y> = <x, scatter_add(y)>, summed over the ranks."""
    sums = np.array([np.vdot(gathered, y), np.vdot(x, added), np.vdot(abs(gathered), abs(y))])
    comm.allreduce(sums)
    assert abs(sums[0] - sums[1]) <= 1e-12 * max(1.0, sums[2])


def drawn(seed: int, ranks: int) -> Case:
    """Some case of so many ranks; Hypothesis draws better ones, but not in several processes at once."""
    rng = np.random.default_rng(seed)
    height, width = (int(n) for n in rng.integers(1, 20, 2))

    def window(edge: int) -> Window:
        rows, columns = (
            np.sort(rng.integers(-edge, height + edge + 1, 2)),
            np.sort(rng.integers(-edge, width + edge + 1, 2)),
        )
        return Window((int(rows[0]), int(columns[0])), (int(rows[1]), int(columns[1])))

    grid = Grid(ranks, 1) if seed % 3 else Grid(1, ranks)
    outputs = grid.windows(height, width) if seed % 2 else [window(0) for _ in range(ranks)]
    board = Window((-EDGE, -EDGE), (height + EDGE, width + EDGE))
    inputs = tuple(window(EDGE) for _ in range(ranks))
    dtype = (np.float64, np.float32)[seed % 5 == 0]
    return Case(height, width, 2, 3, tuple(outputs), inputs, (board,), dtype, seed)
