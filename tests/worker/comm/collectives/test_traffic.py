"""Cost of a sum: messages and bytes as counted, against formulas; and formulas of time against the papers'."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.reduction_tree import binomial, server, with_arity
from dbelief.plan.allreduce_cost import Link, ring_seconds, tree_seconds
from dbelief.process.clock import ManualClock
from tests.examples import examples
from tests.worker.comm.collectives.ways import NAMES, SHAPES, Way, any_numbers
from worker.comm import Communicator, run_ranks
from worker.comm.tracing import ReceiveStats, TracingEngine


def counted(way: Way, ranks: int, size: int) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Messages and bytes by (from, to), of one call."""

    def body(comm: Communicator) -> TracingEngine:
        engine = TracingEngine(comm.engine)
        way.make(Communicator(engine), size)(np.ones(size, np.float32))
        return engine

    messages, sent = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for engine in run_ranks(ranks, body, 20.0):
        messages += engine.messages
        sent += engine.sent_bytes
    return messages, sent


def test_receive_is_timed_from_its_request() -> None:
    """Whoever sends sees to it that 3 s pass before."""
    clock = ManualClock()

    def body(comm: Communicator) -> TracingEngine:
        engine = TracingEngine(comm.engine, clock)
        traced, array = Communicator(engine), np.ones(5, np.float32)
        if comm.rank == 0:
            pending = traced.irecv(array, 1)
            comm.barrier()
            pending.wait()
        else:
            comm.barrier()
            clock.advance(3.0)
            traced.send(array, 0)
        return engine

    first, second = run_ranks(2, body, 20.0)
    assert first.taken == {1: ReceiveStats(1, 20, 3.0)}
    assert not second.taken


@examples(25)
@given(st.sampled_from(list(SHAPES)), st.integers(1, 9), st.integers(1, 60), st.none() | st.integers(1, 30))
def test_a_tree_sends_all_once_up_and_once_down_each_edge(name: str, ranks: int, size: int, chunk: int | None) -> None:
    messages, sent = counted(Way(name, chunk), ranks, size)
    chunks = 1 if chunk is None else math.ceil(size / chunk)
    edges = [(rank, child) for rank, children in enumerate(SHAPES[name](ranks).children) for child in children]
    both = [*edges, *((child, rank) for rank, child in edges)]
    assert messages == Counter(both * chunks)
    assert sent == Counter(dict.fromkeys(both, 4 * size))
    assert sent.total() == 2 * (ranks - 1) * 4 * size


@examples(25)
@given(st.integers(2, 9), st.integers(0, 60), st.none() | st.integers(1, 30))
def test_a_ring_sends_to_the_next_all_but_two_pieces_twice(ranks: int, size: int, chunk: int | None) -> None:
    messages, sent = counted(Way("ring", chunk), ranks, size)
    pieces = [b - a for a, b in pairwise(rank * size // ranks for rank in range(ranks + 1))]
    chunks = 1 if chunk is None else math.ceil(math.ceil(size / ranks) / chunk)
    for rank in range(ranks):
        to = (rank + 1) % ranks
        kept = pieces[(rank + 1) % ranks], pieces[(rank + 2) % ranks]
        assert sent[rank, to] == 4 * (2 * size - sum(kept))
        assert messages[rank, to] <= 2 * (ranks - 1) * chunks
    assert sent.total() == 2 * (ranks - 1) * 4 * size
    if size >= ranks * chunks:
        assert messages.total() == 2 * (ranks - 1) * ranks * chunks


@pytest.mark.parametrize("name", NAMES)
def test_16_bits_halve_the_bytes(name: str) -> None:
    messages, sent = counted(Way(name, 20), 5, 101)
    for wire in ("float16", "bfloat16"):
        same, less = counted(Way(name, 20, wire), 5, 101)
        assert same == messages
        assert {edge: 2 * count for edge, count in less.items()} == sent


LAYERS = (784 * 32, 32, 32 * 10, 10)
"""Tensors of a network of two dense layers."""


@pytest.mark.parametrize("name", ["server", "binomial", "binary"])
def test_packed_sum_is_one_message_with_the_same_numbers(name: str) -> None:
    """You et al. 2017, section 5.2: L alpha + n beta becomes alpha + n beta."""
    ranks, size, ends = 4, sum(LAYERS), [0, *accumulate(LAYERS)]

    def body(comm: Communicator) -> tuple[TracingEngine, TracingEngine]:
        packed, layered = TracingEngine(comm.engine), TracingEngine(comm.engine)
        one, many = any_numbers(comm.rank, size), any_numbers(comm.rank, size)
        Way(name).make(Communicator(packed), size)(one)
        for a, b in pairwise(ends):
            Way(name).make(Communicator(layered), b - a)(many[a:b])
        assert one.tobytes() == many.tobytes()
        return packed, layered

    for packed, layered in run_ranks(ranks, body):
        assert set(packed.messages.values()) == {1}
        assert layered.messages == Counter({edge: len(LAYERS) for edge in packed.messages})
        assert layered.sent_bytes == packed.sent_bytes


LINK = Link(alpha_s=1.0, beta_s=0.25)


@pytest.mark.parametrize(("ranks", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_seconds_of_whole_vectors_are_the_papers(ranks: int, rounds: int) -> None:
    """FireCaffe, Eq. 3 (once for each direction) and Eq. 4, with a latency for each message."""
    message_s = 1.0 + 0.25 * 100
    assert tree_seconds(server(ranks), 100, LINK) == 2 * (ranks - 1) * message_s
    assert tree_seconds(binomial(ranks), 100, LINK) == 2 * rounds * message_s
    assert ring_seconds(ranks, 100, LINK) == pytest.approx(2 * (ranks - 1) * (1.0 + 25.0 / ranks))


def test_seconds_of_many_chunks() -> None:
    """Then only the busiest link counts: a chain 2 |W|, a binary tree 3, a server P - 1, a binomial one log2 P."""
    free = Link(0.0, 1.0)
    for tree, passes in ((with_arity(8, 1), 2), (with_arity(8, 2), 3), (server(8), 7), (binomial(8), 3)):
        assert tree_seconds(tree, 1.0, free, 10_000) == pytest.approx(passes, rel=0.01)
    assert ring_seconds(8, 1.0, free, 10_000) == pytest.approx(2 * 7 / 8)
