"""Predicted seconds against the algorithms themselves, run over links whose messages take alpha + beta m each."""

from __future__ import annotations

import math
from itertools import permutations

import pytest

from dbelief.plan.allreduce_cost import Link
from dbelief.plan.communication_cost import Sum, predict, sums
from tests.worker.comm.collectives.simulated import simulated_s
from tests.worker.comm.collectives.ways import Way

NUMBERS, CHUNK = 840, 35
"""As many as any of 2 to 8 ranks can share evenly; the chunks of a piece may differ by a number."""


def run(one: Sum, ranks: int, link: Link) -> float:
    way = Way({"tree": "binomial"}.get(one.way, one.way), CHUNK if one.chunks > 1 else None)
    return simulated_s(ranks, NUMBERS, link, lambda comm: way.make(comm, NUMBERS))


@pytest.mark.parametrize("alpha_s", [0.0, 0.02])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_predictions_and_their_order(ranks: int, alpha_s: float) -> None:
    """All six ways, unpipelined and pipelined: each one's time, and who is faster than whom."""
    link = Link(alpha_s, 1e-3)
    predicted = sums(ranks, NUMBERS, link, CHUNK)
    assert [(one.way, one.chunks > 1) for one in predicted] == [
        (way, chunked) for chunked in (False, True) for way in ("server", "tree", "ring")
    ]
    taken = {one: run(one, ranks, link) for one in predicted}
    for one, seconds in taken.items():
        assert one.seconds == pytest.approx(seconds, rel=0.02 if one.chunks > 1 else 1e-9)
    for first, second in permutations(predicted, 2):
        if first.seconds < 0.98 * second.seconds:
            assert taken[first] < taken[second], f"{first}, {second}"


@pytest.mark.parametrize("chunks", [1, 2, 10])
@pytest.mark.parametrize("ranks", range(2, 18))
def test_formulas_in_words_of_the_docs(ranks: int, chunks: int) -> None:
    link = Link(0.5, 2.0)
    rounds, message_s = math.ceil(math.log2(ranks)), link.seconds(1000 / chunks)
    server, tree = (predict(way, ranks, 1000, 250, link, 250 // chunks) for way in ("server", "tree"))
    assert (server.chunks, tree.chunks) == (chunks, chunks)
    assert server.seconds == pytest.approx((chunks + 1) * (ranks - 1) * message_s)
    assert tree.seconds == pytest.approx((chunks + 1) * rounds * message_s)
