"""Any way of summing, drawn or all of them, and what holds for each; on threads here, by `mpiexec` in `program.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.core.reduction_tree import Shape, binomial, server, with_arity
from worker.comm import Communicator
from worker.comm.collectives import Allreduce, RingAllreduce, TreeAllreduce
from worker.comm.collectives.wire_format import Wire

SHAPES: dict[str, Callable[[int], Shape]] = {
    "server": server,
    "binomial": binomial,
    "chain": lambda ranks: with_arity(ranks, 1),
    "binary": lambda ranks: with_arity(ranks, 2),
    "ternary": lambda ranks: with_arity(ranks, 3),
}
NAMES = (*SHAPES, "ring")


@dataclass(frozen=True)
class Way:
    """What all ranks agree on."""

    name: str
    chunk: int | None = None
    wire: Wire | None = None

    def make(self, comm: Communicator, shape: Any, dtype: Any = np.float32) -> Allreduce:
        if self.name == "ring":
            return RingAllreduce(comm, shape, dtype, wire=self.wire, chunk=self.chunk)
        tree = SHAPES[self.name](comm.size)
        return TreeAllreduce(comm, shape, dtype, tree, wire=self.wire, chunk=self.chunk)

    def roundings(self, ranks: int) -> int:
        """How often what a rank brings is rounded on its way, if messages are."""
        if self.name == "ring":
            return ranks
        tree = SHAPES[self.name](ranks)
        return max(tree.depth(rank) for rank in range(ranks)) + 1


def whole(rank: int, size: int, seed: int = 0) -> np.ndarray:
    """Numbers whose sums over few ranks are exact in any order, and in 16 bits too."""
    return np.random.default_rng([rank, seed]).integers(-8, 9, size).astype(np.float32)


def any_numbers(rank: int, size: int) -> np.ndarray:
    """Numbers of many magnitudes."""
    draw = np.random.default_rng([rank, size])
    return (draw.standard_normal(size) * 10.0 ** draw.integers(-3, 3, size)).astype(np.float32)


def ways() -> Iterator[Way]:
    """One of each kind."""
    for name in NAMES:
        yield Way(name)
        yield Way(name, chunk=7)
    for name in ("binomial", "ring"):
        yield Way(name, wire="float16")
        yield Way(name, chunk=7, wire="bfloat16")


def exact_sums(comm: Communicator) -> None:
    """All ways give the sum, again and again, with buffers that are kept."""
    for way in ways():
        for size in (0, 1, 101):
            summed = way.make(comm, size)
            for seed in (1, 2):
                array = whole(comm.rank, size, seed)
                summed(array)
                np.testing.assert_array_equal(array, sum(whole(rank, size, seed) for rank in range(comm.size)))


def same_bits(comm: Communicator) -> None:
    """All ranks end with the bits of rank 0."""
    for way in ways():
        array = any_numbers(comm.rank, 101)
        way.make(comm, 101)(array)
        assert comm.share(array.tobytes()) == array.tobytes()


def large_sums(comm: Communicator) -> None:
    """Messages that no mailbox holds."""
    for way in (Way("binomial"), Way("server", chunk=50_000), Way("binary", chunk=50_000), Way("ring", chunk=20_000)):
        array = whole(comm.rank, 300_007)
        way.make(comm, 300_007)(array)
        np.testing.assert_array_equal(array, sum(whole(rank, 300_007) for rank in range(comm.size)))


BODIES: tuple[Callable[[Communicator], None], ...] = (exact_sums, same_bits, large_sums)
