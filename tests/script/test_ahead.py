"""A data loader with processes of its own ends when the job needs no more samples, and not before."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from dbelief.data import permutation
from dbelief.errors import UserError
from tests.script.test_sampler import DRAINED, OVER, SEED, SIZE, WAIT, Leases, sampler

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from torch.utils.data import DataLoader  # noqa: E402  (after the check for torch)


def loop(source: Leases, each: Callable[[int], object], **options: Any) -> list[list[int]]:
    """The batches of a loop over a loader with a process, each stepped."""
    batches = list[list[int]]()
    for batch in DataLoader(range(SIZE), batch_sampler=sampler(source), num_workers=1, **options):
        batches.append(batch.tolist())
        each(len(batch))
    return batches


@pytest.mark.parametrize("persistent", [False, True])
def test_samples_that_come_back_after_the_last_batch_was_delivered(persistent: bool) -> None:
    """All are leased, and a replica fails while this one makes its last step."""
    source = Leases((0, 0, 4), *[DRAINED] * 5, (0, 8, 12), OVER)
    order = permutation(SIZE, SEED, 0).tolist()
    batches = loop(source, source.drawn.step, persistent_workers=persistent)
    assert batches == [order[0:2], order[2:4], order[8:10], order[10:12]]
    assert not source.drawn.pending


def test_what_others_wait_for_is_stepped_first() -> None:
    """In lockstep no lease comes while two steps are pending; the loader draws ahead again."""
    source = Leases((0, 0, 4), *[WAIT] * 4, (0, 4, 10), OVER, lockstep=2)
    depths = list[int]()

    def step(samples: int) -> None:
        depths.append(source.drawn.pending)
        source.drawn.step(samples)

    assert len(loop(source, step)) == 5
    assert depths == [2, 2, 3, 2, 1], "the loader fills up again"


def test_by_epoch_a_loop_ends_with_the_epoch_and_draws_nothing_of_the_next() -> None:
    source = Leases((0, 0, 4), (1, 0, 4), OVER)
    source.by_epoch = True
    assert len(loop(source, source.drawn.step)) == 2
    assert (source.drawn.pending, source.drawn.undrawn) == (0, 4)
    assert len(loop(source, source.drawn.step)) == 2


def test_an_iterator_that_ended_draws_no_more() -> None:
    source = Leases((0, 0, 2), OVER)
    batches = iter(DataLoader(range(SIZE), batch_sampler=sampler(source), num_workers=1))
    source.drawn.step(len(next(batches)))
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    source._answers = [(0, 2, 4)]
    with pytest.raises(StopIteration):
        next(batches)
    assert not source.drawn.pending


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_refused_loader_ends_in_silence() -> None:
    """An error of its `__del__` after the one that is raised would be the last line of the script."""
    source = Leases(OVER)
    source.unguarded = 8
    loader = DataLoader(range(SIZE), batch_sampler=sampler(source), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(UserError, match="line 8 of the script"):
        iter(loader)
    gc.collect()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_is_left_loses_nothing_of_what_its_loader_has_drawn(persistent: bool) -> None:
    """The next loop draws it again; what the first one has taken and not stepped stays the oldest."""
    source, seen = Leases((0, 0, 5), (0, 5, 12), OVER), list[int]()
    loader = DataLoader(range(SIZE), batch_sampler=sampler(source), num_workers=2, persistent_workers=persistent)
    for loops in range(9):
        for batch in loader if loops % 2 else DataLoader(range(SIZE), batch_sampler=sampler(source), num_workers=1):
            first = source.drawn.next()
            assert first is not None
            seen += batch.tolist()
            order = permutation(SIZE, SEED, 0).tolist()
            assert batch.tolist() == order[first.lease.start + first.start : first.lease.start + first.stop]
            source.drawn.step(len(batch))
            if len(seen) % 3:
                break
    assert seen == permutation(SIZE, SEED, 0).tolist()


def test_a_loader_out_of_order_is_refused() -> None:
    loader = DataLoader(range(SIZE), batch_sampler=sampler(Leases(OVER)), num_workers=1, in_order=False)
    with pytest.raises(UserError, match="in_order=False: batches are stepped in the order of the sampler"):
        iter(loader)
