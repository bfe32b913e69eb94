from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.core.states import DatasetSizes
from coordinator.scheduling.sizing import leases, progress
from dbelief.job import Job
from dbelief.job.lease_size import lease_size

MakeJob = Callable[..., Job]
SHAPE = DatasetSizes(train=10_000, validation=1_000, test=500)
BLIND = DatasetSizes(train=10_000, validation=0, test=0)


def test_mini_batches_of_leases_are_the_strategys(a_job: MakeJob) -> None:
    pool = leases(a_job(strategy__batch=8, strategy__n_fetch=2, strategy__n_push=3, strategy__literal=True), SHAPE, 9)
    assert (pool.batch, pool.total, pool.epoch_samples) == (8, 9, 10_000)
    assert [pool.steps(samples) for samples in (0, 1, 8, 9)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("replicas", "train", "samples"),
    [
        (1, 1_000, 250),  # a quarter of the epoch
        (7, 1_000, 40),  # never less than four mini-batches
        (1, 10**6, 640),  # never more than 64
        (0, 1_000, 250),  # clients only, and yet a lease has a size
    ],
)
def test_a_lease_is_a_quarter_of_a_replicas_share(a_job: MakeJob, replicas: int, train: int, samples: int) -> None:
    job = a_job(strategy__lease=None, replicas=replicas)
    assert lease_size(job, train) == samples


@pytest.mark.parametrize(("wanted", "samples"), [(10, 60), (89, 60), (91, 120), (600, 600)])
def test_a_lease_is_whole_cycles_of_fetches_and_pushes(a_job: MakeJob, wanted: int, samples: int) -> None:
    job = a_job(strategy__lease=wanted, strategy__n_fetch=2, strategy__n_push=3)
    assert lease_size(job, SHAPE.train) == samples


@pytest.mark.parametrize(("train", "rounds"), [(100, 1), (10_000, 8), (10**6, 64)])
def test_a_lease_of_diloco_holds_rounds(a_job: MakeJob, train: int, rounds: int) -> None:
    strategy = {"name": "diloco", "batch": 10, "steps": 32, "inner": {"name": "sgd", "rate": 1}}
    job = a_job(strategy=strategy, replicas=1)
    assert lease_size(job, train) == rounds * 10 * 32


def test_evaluation_interval_defaults_to_half_an_epoch(a_job: MakeJob) -> None:
    assert progress(a_job(evaluate={}), SHAPE, 1).evaluate_every == 5_000
    assert progress(a_job(evaluate__every=70), SHAPE, 1).evaluate_every == 70
    assert progress(a_job(evaluate__every=70), BLIND, 1).evaluate_every is None


def test_the_best_is_kept_only_where_it_can_be_known(a_job: MakeJob) -> None:
    job = a_job(evaluate={"keep": "best"})
    assert progress(job, SHAPE, 1).keep_best
    assert not progress(job, BLIND, 1).keep_best
    assert not progress(a_job(evaluate={"keep": "last"}), SHAPE, 1).keep_best


def test_thresholds_are_the_jobs(a_job: MakeJob) -> None:
    job = a_job(
        limits={"epochs": 1, "validation_accuracy": 0.9, "validation_loss": 0.1, "patience": 4},
        divergence={"factor": 3.0, "seconds": 7.0},
    )
    figures = progress(job, SHAPE, 1)
    assert (figures.target_accuracy, figures.target_loss, figures.patience) == (0.9, 0.1, 4)
    assert (figures.divergence.factor, figures.divergence.seconds) == (3.0, 7.0)


@pytest.mark.parametrize(
    ("warm_start", "total", "expected"),
    [
        ({}, 40_000, (2_000, None)),  # a share of 0.05
        ({"share": 0.1}, 40_000, (4_000, None)),
        ({"share": 0.1}, None, (1_000, None)),  # of an epoch, where no total is known
        ({"samples": 300}, 40_000, (300, None)),
        ({"loss": 0.5}, 40_000, (None, 0.5)),
        ({"samples": 300, "loss": 0.5}, 40_000, (300, 0.5)),
        (None, 40_000, (None, None)),
    ],
)
def test_a_warm_start_is_samples_or_a_loss_or_a_share(
    a_job: MakeJob, warm_start: object, total: int | None, expected: tuple[int | None, float | None]
) -> None:
    figures = progress(a_job(strategy__warm_start=warm_start), SHAPE, total)
    assert (figures.warm_start.samples, figures.warm_start.loss) == expected


def test_no_warm_start_for_one_replica_or_lockstep(a_job: MakeJob) -> None:
    assert not progress(a_job(strategy__warm_start={}, replicas=1), SHAPE, 100).warm_start.active
    assert not progress(a_job(strategy__warm_start={}, strategy__staleness=0), SHAPE, 100).warm_start.active
