import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.lease import DataLease, FetchPushSchedule

cadences = st.builds(
    FetchPushSchedule,
    batch=st.integers(1, 40),
    n_fetch=st.integers(1, 6),
    n_push=st.integers(1, 6),
    literal=st.booleans(),
)
samples = st.integers(1, 500)


def replayed(cadence: FetchPushSchedule, samples: int) -> list[int]:
    """Samples done at each push of a lease, as a replica makes them: mini-batch by mini-batch."""
    done, step, at_pushes = 0, 0, []
    steps = cadence.steps(samples)
    while done < samples:
        done += min(cadence.batch, samples - done)
        if cadence.pushes_after(step, steps):
            at_pushes.append(done)
        step += 1
    assert step == steps
    return at_pushes


@given(cadences, samples)
def test_last_push_completes_the_lease_and_none_is_empty(cadence: FetchPushSchedule, samples: int) -> None:
    behind = [0, *replayed(cadence, samples)]
    assert behind[-1] == samples
    assert all(a < b for a, b in itertools.pairwise(behind))


@given(cadences, samples)
def test_no_push_has_more_mini_batches_than_the_cadence_says(cadence: FetchPushSchedule, samples: int) -> None:
    most = cadence.n_push * cadence.batch
    assert all(b - a <= most for a, b in itertools.pairwise([0, *replayed(cadence, samples)]))


@given(cadences)
def test_an_empty_lease_has_nothing(cadence: FetchPushSchedule) -> None:
    assert cadence.steps(0) == 0
    assert replayed(cadence, 0) == []


@given(cadences, samples)
def test_fetches_follow_the_cadence(cadence: FetchPushSchedule, samples: int) -> None:
    fetches = [step for step in range(cadence.steps(samples)) if cadence.fetches_at(step)]
    assert fetches == list(range(0, cadence.steps(samples), cadence.n_fetch))


@pytest.mark.parametrize(
    ("literal", "steps", "pushes"),
    [
        (False, 7, [2, 5, 6]),  # every third, and the rest
        (True, 7, [0, 3, 6]),  # the paper's: after steps 0, 3, 6
        (False, 6, [2, 5]),
        (True, 6, [0, 3, 5]),
        (False, 1, [0]),
        (True, 1, [0]),
    ],
)
def test_both_orders_of_the_paper(literal: bool, steps: int, pushes: list[int]) -> None:
    cadence = FetchPushSchedule(batch=4, n_fetch=3, n_push=3, literal=literal)
    assert [step for step in range(steps) if cadence.pushes_after(step, steps)] == pushes


def test_a_lease_counts_its_samples() -> None:
    assert DataLease(id=1, epoch=0, start=30, stop=100, samples_before=30).samples == 70


@given(cadences)
def test_whether_a_fetch_follows_every_push(cadence: FetchPushSchedule) -> None:
    """In a lease in which every residue of both counts occurs; its last push is followed by none."""
    steps = 2 * cadence.n_push * cadence.n_fetch + 2
    pushed = [step for step in range(steps - 1) if cadence.pushes_after(step, steps)]
    assert cadence.fetches_after_every_push == all(cadence.fetches_at(step + 1) for step in pushed)
