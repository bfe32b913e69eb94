"""Pairs of a batch and the next one, of samples that may come only after a step."""

from __future__ import annotations

from typing import Any

import pytest

from dbelief.data import permutation
from dbelief.script.one_ahead import one_ahead
from tests.script.test_sampler import DRAINED, OVER, SEED, SIZE, WAIT, Leases, sampler


@pytest.mark.parametrize(
    ("answers", "lockstep", "known"),
    [
        ([(0, 0, 4), (0, 4, 8), OVER], None, [True, True, True, False]),
        ([(0, 0, 4), *[DRAINED] * 2, (0, 4, 8), OVER], None, [True, False, True, False]),
        ([(0, 0, 2), *[WAIT] * 4, (0, 2, 8), OVER], 2, [True, True, True, False]),
    ],
)
def test_no_batch_is_lost_where_the_next_one_is_not_known(
    answers: list[Any], lockstep: int | None, known: list[bool]
) -> None:
    source, batches, following = Leases(*answers, lockstep=lockstep), list[list[int]](), list[Any]()
    for batch, after in one_ahead(sampler(source)):
        batches.append(batch)
        following.append(after)
        source.drawn.step(len(batch))
    assert [index for batch in batches for index in batch] == permutation(SIZE, SEED, 0)[:8].tolist()
    assert [after is not None for after in following] == known
    assert all(after in (None, batch) for after, batch in zip(following, batches[1:], strict=False))
