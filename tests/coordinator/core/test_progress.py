from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.divergence import DivergenceDetector
from coordinator.core.messages import ProgressReport, ResourceUsage
from coordinator.core.progress import OVER, Best, Evaluated, TrainingProgress
from coordinator.core.warm_start import WarmStart


def told(samples: int = 100, loss: float = 1.0, pushes: int = 10, staleness: float = 0.0) -> ProgressReport:
    """News of ten mini-batches, with this mean loss and mean staleness."""
    return ProgressReport(
        lease=1,
        pushes=pushes,
        samples=samples,
        steps=10,
        loss_sum=loss * samples,
        staleness_sum=staleness * pushes,
    )


def train(progress: TrainingProgress, losses: Iterable[float], from_s: float = 0.0) -> list[str | None]:
    """Reports of 2,000 samples, one a second: the smoothed loss is that of the last one."""
    return [progress.record_report(0, told(2_000, loss), from_s + i) for i, loss in enumerate(losses)]


# -- lives that are settled ----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1]),
            st.integers(1, 6),
            st.lists(st.integers(0, 9), max_size=4),
            st.integers(0, 100),
        ),
        max_size=12,
    ),
    st.sets(st.integers(1, 6)),
)
def test_sums_do_not_depend_on_order_of_settling(
    told: list[tuple[int, int, list[int], int]], settled: set[int]
) -> None:
    """Rows may be of any length: a set may have been written when there were fewer classes."""
    there, here = TrainingProgress(), TrainingProgress()
    for progress in (there, here):
        for replica, life, stale, number in told:
            more = {"sent": 8 * number, "received": number, "residual": 0.5 * number}
            cached = {"user": 2 * number}, {"user": number}
            usage = ResourceUsage({"compute": 1.0 * number}, stale, more, *cached)
            progress.record_usage(replica, 10 * replica + life, usage)
    for life in settled:
        for incarnation in (life, 10 + life, life):
            here.settle(incarnation)
    assert here.stale() == there.stale()
    last = {(replica, life): number for replica, life, _, number in told}
    assert here.cached == there.cached == ({"user": (2 * sum(last.values()), sum(last.values()))} if told else {})
    assert here.residual() == there.residual()
    lives = {10 * replica + life for replica, life, _, _ in told}
    over = {life for life in lives if life in settled or life - 10 in settled}
    assert here.residual({OVER, *over}) == there.residual(over)
    assert here.residual(lives - over) == there.residual(lives - over)
    here.settle_all()
    for replica, own in there.replicas.items():
        assert (here.replicas[replica].seconds, here.replicas[replica].bytes) == (own.seconds, own.bytes)
        assert set(here.replicas[replica].wire) <= {"0"}


# -- figures -------------------------------------------------------------------------------------------------


def test_nothing_is_known_before_the_first_push() -> None:
    progress = TrainingProgress()
    assert math.isnan(progress.loss)
    assert math.isnan(progress.staleness_mean)
    assert math.isnan(progress.staleness_of(0))
    assert progress.samples_of(0) == 0


def test_staleness_is_averaged_over_pushes() -> None:
    progress = TrainingProgress()
    progress.record_report(0, told(pushes=10, staleness=1.0), 0.0)
    progress.record_report(0, told(pushes=10, staleness=3.0), 0.0)
    progress.record_report(1, told(pushes=20, staleness=8.0), 0.0)
    assert progress.staleness_of(0) == 2.0
    assert progress.staleness_of(1) == 8.0
    assert progress.staleness_mean == 5.0
    assert (progress.samples, progress.samples_of(0), progress.samples_of(1)) == (300, 200, 100)
    assert (progress.pushes, progress.steps) == (40, 30)


def test_the_staleness_shown_is_that_of_the_latest_pushes() -> None:
    progress = TrainingProgress()
    progress.record_report(0, told(pushes=1_000, staleness=1.0), 0.0)
    progress.record_report(0, told(pushes=50, staleness=5.0), 0.0)
    assert progress.staleness == 3.0
    progress.record_report(0, told(pushes=100, staleness=7.0), 0.0)
    assert progress.staleness == 7.0


def test_loss_is_smoothed_over_about_2000_samples() -> None:
    progress = TrainingProgress()
    progress.record_report(0, told(100, 3.0), 0.0)
    assert progress.loss == progress.divergence.first_loss == 3.0
    progress.record_report(0, told(200, 1.0), 0.0)
    assert progress.loss == pytest.approx(3.0 - 2.0 * 200 / 2_000)
    progress.record_report(0, told(5_000, 1.0), 0.0)
    assert progress.loss == 1.0


@pytest.mark.parametrize(
    "news", [ProgressReport(samples=30), ProgressReport(pushes=1), ProgressReport(pushes=1, steps=1)]
)
def test_ledger_only_progress_has_no_loss(news: ProgressReport) -> None:
    progress = TrainingProgress()
    assert progress.record_report(0, news, 0.0) is None
    assert progress.samples == news.samples
    assert math.isnan(progress.loss)


# -- warm start ----------------------------------------------------------------------------------------------


def test_without_warm_start_all_replicas_are_admitted() -> None:
    progress = TrainingProgress()
    assert not progress.warm_start.active
    assert progress.warm_start.admits(1)
    assert progress.warm_start.admits(2)
    assert not progress.warm_start_ends()
    assert progress.warm_start.room(10**9) is None


def test_release_by_samples_comes_once() -> None:
    progress = TrainingProgress(warm_start=WarmStart(150))
    assert [progress.warm_start.room(n) for n in (0, 100, 150, 200)] == [150, 50, 0, 0]
    progress.record_report(0, told(100), 0.0)
    assert not progress.warm_start_ends()
    progress.record_report(0, told(50), 0.0)
    assert [progress.warm_start_ends(), progress.warm_start_ends()] == [True, False]
    assert progress.warm_start.room(200) is None


def test_warm_start_by_loss_ends_once_without_rationing() -> None:
    progress = TrainingProgress(warm_start=WarmStart(loss=0.5))
    assert not progress.warm_start_ends()  # the loss is not known yet
    assert progress.warm_start.room(10**9) is None
    train(progress, [0.6])
    assert not progress.warm_start_ends()
    train(progress, [0.5])
    assert [progress.warm_start_ends(), progress.warm_start_ends()] == [True, False]


def test_a_warm_start_of_nothing_is_over_at_once() -> None:
    assert TrainingProgress(warm_start=WarmStart(0)).warm_start_ends()


# -- evaluation ----------------------------------------------------------------------------------------------


def test_an_evaluation_is_due_once_per_interval() -> None:
    progress = TrainingProgress(evaluate_every=250)
    due = []
    for _ in range(10):
        progress.record_report(0, told(100), 0.0)
        due.append(progress.evaluation_due())
    assert [100 * (i + 1) for i, is_due in enumerate(due) if is_due] == [300, 500, 800, 1000]


def test_late_evaluation_covers_all_samples_seen() -> None:
    progress = TrainingProgress(evaluate_every=100)
    progress.record_report(0, told(100), 0.0)
    assert progress.evaluation_due()
    progress.record_report(0, told(250), 0.0)
    progress.evaluated(Evaluated(0.5, 0.8, samples=350))
    assert not progress.evaluation_due()
    progress.record_report(0, told(50), 0.0)
    assert progress.evaluation_due()


def test_without_an_interval_none_is_due() -> None:
    progress = TrainingProgress()
    progress.record_report(0, told(10**9), 0.0)
    assert not progress.evaluation_due()


def evaluate(progress: TrainingProgress, *results: tuple[float, float | None]) -> list[str]:
    """Evaluate and store; the names they were kept under."""
    names = []
    for loss, accuracy in results:
        keep_as, _ = progress.evaluated(Evaluated(loss, accuracy, progress.samples))
        names.append(keep_as)
        if keep_as:
            progress.record_best(Best(keep_as, loss, accuracy, progress.samples))
    return names


def test_the_best_are_kept_under_two_names_in_turn() -> None:
    progress = TrainingProgress(keep_best=True)
    names = evaluate(progress, (0.5, 0.8), (0.6, 0.7), (0.4, 0.9), (0.3, 0.95), (0.9, 0.1))
    assert names == ["best.0", "", "best.1", "best.0", ""]
    assert progress.best == Best("best.0", 0.3, 0.95, 0)


def test_until_the_new_best_is_stored_the_old_one_stands() -> None:
    progress = TrainingProgress(keep_best=True)
    evaluate(progress, (0.5, 0.8))
    assert progress.evaluated(Evaluated(0.4, 0.9, 100))[0] == "best.1"
    assert progress.best is not None
    assert progress.best.vector == "best.0"
    assert progress.evaluated(Evaluated(0.4, 0.9, 200))[0] == "best.1", "what was not stored is better still"


def test_keep_last_stores_nothing_but_tracks_the_best() -> None:
    progress = TrainingProgress(keep_best=False)
    assert evaluate(progress, (0.5, 0.8), (0.6, 0.7)) == ["", ""]
    assert progress.best == Best("", 0.5, 0.8, 0)
    assert progress.last is not None
    assert progress.last.accuracy == 0.7


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([(0.5, 0.8), (0.9, 0.81)], 1),  # accuracy first
        ([(0.5, 0.8), (0.4, 0.8)], 1),  # then loss
        ([(0.5, 0.8), (0.5, 0.8)], 0),  # a tie is no gain
        ([(0.5, None), (0.4, None)], 1),  # regression has a loss only
        ([(0.4, None), (0.5, None)], 0),
    ],
)
def test_best_is_by_accuracy_then_by_loss(results: list[tuple[float, float | None]], best: int) -> None:
    progress = TrainingProgress(keep_best=True)
    evaluate(progress, *results)
    assert progress.best is not None
    assert (progress.best.loss, progress.best.accuracy) == results[best]


@pytest.mark.parametrize(
    ("by", "values", "best"),
    [
        ("auc", [0.8, 0.9, 0.85], 1),
        ("mae", [0.8, 0.9, 0.7], 2),
        ("auc", [None, 0.1, None], 1),  # one that is not defined is worse than any
        ("auc", [None, None], 1),  # then by loss, which falls here
        ("auc", [0.9, 0.9], 1),
    ],
)
def test_best_is_by_the_metric_that_the_job_names(by: str, values: list[float | None], best: int) -> None:
    progress = TrainingProgress(keep_best=True, higher={"auc": True, "mae": False}, best_by=by)
    for place, value in enumerate(values):
        new = Evaluated(1.0 - 0.1 * place, 0.5, place, {} if value is None else {by: value})
        keep_as, _ = progress.evaluated(new)
        if keep_as:
            progress.record_best(new.kept_as(keep_as))
    assert progress.best is not None
    assert progress.best.samples == best
    state = progress.state()
    again = TrainingProgress(keep_best=True)
    again.restore(json.loads(json.dumps(state)), {})
    assert (again.best, again.last) == (progress.best, progress.last)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("auc", 0.9, "validation auc 0.9 reached its target 0.9"),
        ("auc", 0.89, None),
        ("mae", 0.2, "validation mae 0.2 reached its target 0.3"),
        ("mae", 0.31, None),
    ],
)
def test_stop_at_the_metric_asked_for(name: str, value: float, reason: str | None) -> None:
    progress = TrainingProgress(higher={"auc": True, "mae": False}, targets={"auc": 0.9, "mae": 0.3})
    assert progress.evaluated(Evaluated(0.5, None, 0, {name: value}))[1] == reason


# -- reasons to stop early -----------------------------------------------------------------------------------


def reasons(progress: TrainingProgress, *results: tuple[float, float | None]) -> list[str | None]:
    return [progress.evaluated(Evaluated(loss, accuracy, 0))[1] for loss, accuracy in results]


def test_stop_at_the_accuracy_asked_for() -> None:
    found = reasons(TrainingProgress(target_accuracy=0.9), (0.1, 0.89), (0.1, None), (0.9, 0.9))
    assert found == [None, None, "validation accuracy 0.9000 reached its target 0.9"]


def test_stop_at_the_loss_asked_for() -> None:
    found = reasons(TrainingProgress(target_loss=0.2), (0.21, 0.99), (0.2, None))
    assert found == [None, "validation loss 0.2 reached its target 0.2"]


def test_patience_stops_and_each_gain_resets_it() -> None:
    found = reasons(TrainingProgress(patience=2), *((loss, None) for loss in (0.5, 0.6, 0.4, 0.5, 0.5)))
    assert found == [None, None, None, None, "no better validation result for 2 evaluations"]


# -- divergence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_it_at_once(loss: float) -> None:
    progress = TrainingProgress()
    reason = progress.record_report(0, told(100, loss), 0.0)
    assert reason == f"diverged: the training loss is {loss} after 100 samples; try a lower rate"


def test_a_loss_far_above_its_start_for_too_long_ends_it() -> None:
    progress = TrainingProgress(divergence=DivergenceDetector(10.0, 3.0))
    found = train(progress, [1.0, 11.0, 12.0, 13.0, 14.0])
    assert found[:4] == [None] * 4
    assert found[4] == (
        "diverged: the training loss 14 has been above 10 times its start (1) for 3 s; try a lower rate"
    )


def test_recovered_loss_resets_divergence_timer() -> None:
    progress = TrainingProgress(divergence=DivergenceDetector(10.0, 3.0))
    assert train(progress, [1.0, 11.0, 12.0, 9.0, 11.0, 12.0, 13.0]) == [None] * 7
    assert train(progress, [14.0], from_s=7.0)[0] is not None


@pytest.mark.parametrize("first", [0.0, -2.0])
def test_a_loss_without_a_positive_start_has_no_multiples(first: float) -> None:
    progress = TrainingProgress(divergence=DivergenceDetector(10.0, 0.0))
    assert train(progress, [first, first / 2, 5.0, 5.0]) == [None] * 4
    assert train(progress, [math.nan])[0] is not None


# -- snapshots -----------------------------------------------------------------------------------------------


def options() -> dict[str, Any]:
    return {"warm_start": WarmStart(100), "evaluate_every": 250, "keep_best": True, "patience": 3}


def test_snapshot_state_restores_all_progress() -> None:
    progress = TrainingProgress(**options())
    progress.record_report(0, told(300, 2.0, staleness=1.5), 0.0)
    progress.record_report(3, told(100, 1.0), 0.0)
    progress.warm_start_ends()
    progress.evaluation_due()
    evaluate(progress, (0.5, 0.8), (0.6, 0.7))
    successor = TrainingProgress(**options())
    successor.restore(json.loads(json.dumps(progress.state())), {})
    assert successor.state() == progress.state()
    assert successor.best == progress.best
    assert (successor.samples_of(0), successor.samples_of(3), successor.staleness_of(0)) == (300, 100, 1.5)
    assert (successor.loss, successor.divergence.first_loss, successor.warm_start.active, successor.without_gain) == (
        progress.loss,
        2.0,
        False,
        1,
    )
    assert not successor.evaluation_due()


def test_before_the_first_push_there_is_no_loss_to_hold() -> None:
    successor = TrainingProgress()
    successor.restore(json.loads(json.dumps(TrainingProgress().state(), allow_nan=False)), {})
    assert math.isnan(successor.loss)
    assert successor.best is None


def test_ledgers_correct_reported_samples() -> None:
    progress = TrainingProgress()
    progress.record_report(0, told(300), 0.0)
    successor = TrainingProgress()
    successor.restore(progress.state(), {0: -50, 1: 20})
    assert (successor.samples, successor.samples_of(0), successor.samples_of(1)) == (270, 250, 20)


def test_snapshot_state_is_not_changed_by_later_training() -> None:
    """It is written to disk outside the lock."""
    progress = TrainingProgress(keep_best=True)
    progress.record_report(0, told(100), 0.0)
    evaluate(progress, (0.5, 0.8))
    state = progress.state()
    before = json.dumps(state)
    progress.record_report(0, told(100), 0.0)
    progress.best.samples = 7  # type: ignore[union-attr]
    assert json.dumps(state) == before
