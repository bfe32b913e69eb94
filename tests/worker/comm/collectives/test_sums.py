"""Sums over ranks against float64, on threads: any number of ranks, any tree, any chunks; invalid arguments."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.reduction_tree import binomial, server, with_arity
from dbelief.errors import RankFailure, Unavailable
from tests.examples import examples
from tests.worker.comm.collectives.ways import BODIES, NAMES, Way, any_numbers, whole
from worker.comm import Communicator, run_ranks
from worker.comm.collectives import RingAllreduce, TreeAllreduce
from worker.comm.collectives.wire_format import Wire
from worker.comm.threads import Group, ThreadEngine

DEADLINE_S = 60.0
ANY: dict[str, Any] = {"wire": "int8"}
"""What no type checker lets through."""


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.__name__))
def test_all_ways(body: Callable[[Communicator], None], ranks: int) -> None:
    run_ranks(ranks, body, DEADLINE_S)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Way, int, int]:
    chunk = draw(st.none() | st.integers(1, 40))
    wire: Wire | None = draw(st.sampled_from([None, None, "float16", "bfloat16"]))
    sizes = st.sampled_from([0, 1, 2, 97]) | st.integers(0, 120)
    return Way(draw(st.sampled_from(NAMES)), chunk, wire), draw(st.integers(1, 9)), draw(sizes)


def test_any_way_gives_float64s_sum_on_all_ranks() -> None:
    @examples(60)
    @given(drawn())
    def check(case: tuple[Way, int, int]) -> None:
        way, ranks, size = case
        bits = run_ranks(ranks, partial(summed, way=way, size=size), DEADLINE_S)
        expected = np.sum([whole(rank, size).astype(np.float64) for rank in range(ranks)], axis=0)
        assert len(set(bits)) == 1
        np.testing.assert_array_equal(np.frombuffer(bits[0], np.float32), expected)

    check()


def summed(comm: Communicator, way: Way, size: int) -> bytes:
    array = whole(comm.rank, size)
    way.make(comm, size)(array)
    return array.tobytes()


def test_orders_of_adding() -> None:
    """A server adds in rank order; a binomial tree of four (0 + 1) + (2 + 3); a ring of three starts anew per piece."""

    def body(comm: Communicator) -> list[np.ndarray]:
        results = [any_numbers(comm.rank, 90) for _ in range(3)]
        for way, array in zip((Way("server"), Way("binomial", 20), Way("ring")), results, strict=True):
            way.make(comm, 90)(array)
        return results

    a, b, c, d = (any_numbers(rank, 90) for rank in range(4))
    in_order, by_tree, _ = run_ranks(4, body)[0]
    np.testing.assert_array_equal(in_order, a + b + c + d)
    np.testing.assert_array_equal(by_tree, (a + b) + (c + d))
    _, _, around = run_ranks(3, body)[0]
    pieces = [slice(0, 30), slice(30, 60), slice(60, 90)]
    for piece, (x, y, z) in zip(pieces, [(a, b, c), (b, c, a), (c, a, b)], strict=True):
        np.testing.assert_array_equal(around[piece], (z + (x + y))[piece])


def test_buffers_are_kept() -> None:
    """A call makes words of a few bytes, and no array: with a million numbers, or a thousand a chunk."""
    size, ranks = 1 << 20, 3

    def body(comm: Communicator) -> None:
        made = [
            Way(name, chunk, wire).make(comm, size)
            for name, chunk in (("binary", None), ("ring", size // 8))
            for wire in (None, "float16", "bfloat16")
        ]
        array = np.ones(size, np.float32)
        for allreduce in made:
            allreduce(array)
            array.fill(1)
            comm.barrier()
            if comm.rank == 0:
                tracemalloc.reset_peak()
                before.append(tracemalloc.get_traced_memory()[0])
            comm.barrier()
            allreduce(array)
            comm.barrier()
            if comm.rank == 0:
                grown.append(tracemalloc.get_traced_memory()[1] - before[-1])
            comm.barrier()
            np.testing.assert_array_equal(array, np.full(size, ranks, np.float32))
            array.fill(1)

    before: list[int] = []
    grown: list[int] = []
    tracemalloc.start()
    try:
        run_ranks(ranks, body, DEADLINE_S)
    finally:
        tracemalloc.stop()
    assert len(grown) == 6
    assert max(grown) < 300_000, grown  # NumPy's own buffers for casts are 32 KB to 64 KB each


@pytest.mark.parametrize("name", ["server", "binomial", "ring"])
def test_a_rank_that_fails_ends_the_sum_of_all(name: str) -> None:
    ends: list[str] = []

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("a rate of 0")
        try:
            Way(name, 10).make(comm, 100)(np.ones(100, np.float32))
        except RankFailure as error:
            ends.append(str(error))
            raise

    with pytest.raises(ZeroDivisionError):
        run_ranks(4, body, 60.0)
    assert len(ends) == 3
    assert all("rank 1 died of ZeroDivisionError: a rate of 0" in end for end in ends)


@pytest.mark.parametrize("name", ["server", "binomial", "ring"])
def test_missing_rank_is_named_at_the_timeout(name: str) -> None:
    never = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            never.wait(30.0)
        else:
            Way(name).make(comm, 10)(np.ones(10, np.float32))

    with pytest.raises(Unavailable, match=r"waited for rank \d to"):
        run_ranks(2, body, 0.2)
    never.set()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda comm: RingAllreduce(comm, 3, np.float32, chunk=0), "chunks of 0 numbers"),
        (lambda comm: RingAllreduce(comm, 3, np.float32, wire=ANY["wire"]), "wire is 'int8'"),
        (lambda comm: RingAllreduce(comm, 3, np.float64, wire="float16"), "must be float32, not float64"),
        (lambda comm: TreeAllreduce(comm, 3, np.float32, binomial(3)), "a tree of 3 ranks for a group of 2"),
        (lambda comm: with_arity(2, 0), "whose ranks have 0 children"),
        (lambda comm: binomial(0), "a tree of 0 ranks"),
        (lambda comm: RingAllreduce(comm, 3, "f4")(np.ones(4, "f4")), r"shape \(3,\), not float32 of shape"),
        (lambda comm: RingAllreduce(comm, 3, "f4")(np.ones(3)), r"not float64"),
        (lambda comm: RingAllreduce(comm, 3, "f4")(np.ones(6, "f4")[::2]), "C-contiguous"),
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[Communicator], object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make(Communicator(ThreadEngine(Group(2), 0)))


def test_a_lone_rank_keeps_its_numbers() -> None:
    comm = Communicator(ThreadEngine(Group(1), 0))
    for way in (Way("binomial", wire="bfloat16"), Way("ring", 3, "float16"), Way("server")):
        array = any_numbers(0, 17)
        way.make(comm, 17)(array)
        np.testing.assert_array_equal(array, any_numbers(0, 17))


@pytest.mark.parametrize("ranks", range(1, 10))
def test_trees_hold_every_rank_once(ranks: int) -> None:
    for tree in (binomial(ranks), server(ranks), *(with_arity(ranks, arity) for arity in range(1, 10))):
        below = [child for children in tree.children for child in children]
        assert sorted(below) == list(range(1, ranks))
        assert all(list(children) == sorted(children) for children in tree.children)
        assert all(tree.depth(rank) <= ranks for rank in range(ranks))
    doubling = (ranks - 1).bit_length()
    assert (binomial(ranks).rounds_up(), binomial(ranks).rounds_down()) == (doubling, doubling)
    assert (server(ranks).rounds_up(), server(ranks).rounds_down()) == (ranks - 1, ranks - 1)
    assert with_arity(ranks, 1).parents == (None, *range(ranks - 1))
