"""Measures of clicks against an exact AUC with ties, scikit-learn's log loss, and sums in any order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from dbelief.evaluation.click_measures import ClickMeasures


def exact_auc(p: np.ndarray, clicks: np.ndarray, weights: np.ndarray) -> float:
    """Share of the pairs, by weight, in which the click has the greater prediction; ties count half. O(n log n)."""
    _, place = np.unique(p, return_inverse=True)
    own, others = (np.bincount(place, weights * chosen) for chosen in (clicks, ~clicks))
    below = np.cumsum(others) - others
    return float((own * (below + others / 2)).sum() / (own.sum() * others.sum()))


SAMPLE = st.tuples(
    st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    st.sampled_from([-1, 0, 1]),
    st.integers(0, 8).map(lambda eighths: eighths / 8),
    st.integers(-1, 1),
)
SAMPLES = st.lists(SAMPLE, max_size=60)


def arrays(samples: list[Any]) -> tuple[np.ndarray, ...]:
    p, labels, weights, slices = zip(*samples, strict=True) if samples else ((), (), (), ())
    return np.array(p, np.float32), np.array(labels, np.int64), np.array(weights), np.array(slices, np.int64)


@given(SAMPLES)
def test_the_area_is_the_exact_one_within_its_bound(samples: list[Any]) -> None:
    p, labels, weights, _ = arrays(samples)
    measures = ClickMeasures(1 << 10)
    measures.add(p, labels, weights)
    clicks = labels == 1
    if not weights[clicks].sum() or not weights[~clicks].sum():
        assert math.isnan(measures.auc)
        assert math.isnan(measures.auc_error)
        return
    assert abs(measures.auc - exact_auc(p, clicks, weights)) <= measures.auc_error + 1e-12


@given(st.lists(st.tuples(st.integers(0, 31), st.booleans(), st.integers(1, 3)), min_size=2, max_size=60))
def test_ties_and_weights_are_exact_where_bins_hold_one_value_each(samples: list[Any]) -> None:
    place, clicks, weights = (np.array(own) for own in zip(*samples, strict=True))
    if clicks.all() or not clicks.any():
        return
    p = 1 / (1 + np.exp(-(place - 15.5)))  # the middles of 32 bins
    measures = ClickMeasures(32)
    measures.add(p, clicks, weights)
    assert measures.auc == pytest.approx(exact_auc(p, clicks, weights), abs=1e-12)
    assert measures.auc == pytest.approx(oracle.roc_auc_score(clicks, p, sample_weight=weights), abs=1e-12)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (-4.0, 1.0), (-2.0, 2.0)])
@pytest.mark.parametrize("bins", [1 << 11, 1 << 16])
def test_the_error_on_continuous_scores_is_below_a_ten_thousandth(bins: int, mean: float, deviation: float) -> None:
    """With the bins of the default the bound, too, where the density of logits is up to 0.4."""
    rng = np.random.default_rng(int(bins + mean))
    logits = rng.normal(mean, deviation, 200_000)
    p = 1 / (1 + np.exp(-logits))
    clicks = rng.random(p.size) < p
    measures = ClickMeasures(bins)
    measures.add(p, clicks)
    assert abs(measures.auc - exact_auc(p, clicks, np.ones(p.size))) < 1e-4
    if bins == 1 << 16:
        assert measures.auc_error < 1e-4


@given(SAMPLES, st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=60, max_size=60))
def test_sums_of_workers_in_any_order_are_those_of_one(samples: list[Any], order: list[int], owner: list[int]) -> None:
    names = ("phone", "desk")
    whole, owners = ClickMeasures(64, names), np.array(owner[: len(samples)], np.int64)
    whole.add(*arrays(samples))
    merged = ClickMeasures(64, names)
    for worker in order:
        own = ClickMeasures(64, names)
        own.add(*(array[owners == worker] for array in arrays(samples)))
        merged.merge(own.state)
    assert np.array_equal(merged.state, whole.state)


@given(SAMPLES.filter(lambda samples: any(weight for _, _, weight, _ in samples)))
def test_loss_and_calibration_are_those_of_the_definitions(samples: list[Any]) -> None:
    p, labels, weights, slices = arrays(samples)
    names, clicks = ("phone", "desk"), labels == 1
    measures = ClickMeasures(64, names)
    measures.add(p, labels, weights, slices)
    found = {"all": measures.overall, **measures.by_slice}
    for name, own in [("all", np.full(p.size, True)), *((name, slices == place) for place, name in enumerate(names))]:
        total = weights[own].sum()
        assert found[name].weight == total
        if not total:
            assert math.isnan(found[name].log_loss)
            continue
        predicted, clicked = (np.average(one[own], weights=weights[own]) for one in (p, clicks))
        assert found[name].clicks == pytest.approx(clicked, abs=1e-7)
        assert found[name].predicted == pytest.approx(predicted, abs=1e-6)
        loss = oracle.log_loss(clicks[own], p[own], sample_weight=weights[own], labels=[False, True])
        assert found[name].log_loss == pytest.approx(loss, abs=2e-6)
        if clicked:
            assert found[name].calibration == pytest.approx(predicted / clicked, rel=1e-5, abs=1e-6)
        else:
            assert math.isnan(found[name].calibration)


def test_a_state_is_written_to() -> None:
    """A buffer of a module, say."""
    state = np.zeros(ClickMeasures.size(8, ["a"]), np.int64)
    ClickMeasures(8, ["a"], state).add([0.5], [1], slices=[0])
    again = ClickMeasures(8, ["a"], state)
    assert again.overall == again.by_slice["a"]
    assert again.overall == pytest.approx([1, 1, 0.5, 0.5, math.log(2)], abs=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 1.5], [0, 1]), "a prediction is 1.5, must be a probability, 0 to 1"),
        (([math.nan], [0]), "a prediction is nan, must be a probability, 0 to 1"),
        (([0.5], [2]), "a label is 2, must be 1, or 0 or -1"),
        (([0.5], [0], [-1]), "a weight is -1, must be 0 or more"),
        (([0.5], [0], [math.inf]), "a weight is inf, must be 0 or more"),
        (([0.5], [0], [1e11]), "weights add up to more than 17,179,869,184"),
        (
            ([0.5], [0, 1]),
            r"predictions, labels and weights have shapes \(1,\), \(2,\) and \(1,\), must",
        ),
        (([0.5], [0], None, [1]), "a slice is 1 or 1, must be -1 to 0"),
        (([0.5], [0], None, [0.5]), r"slices are float64 of shape \(1,\), must be 1 whole numbers"),
    ],
)
def test_what_is_no_sample_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    measures = ClickMeasures(8, ["a"])
    with pytest.raises(ValueError, match=f"^{message}"):
        measures.add(*arguments)
    assert not measures.state.any()


def test_what_is_no_histogram_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^bins is 12, must be a power of two, 2 or more$"):
        ClickMeasures(12)
    with pytest.raises(ValueError, match=r"^slices is \['a', 'a'\], must be names, each once$"):
        ClickMeasures(8, ["a", "a"])
    with pytest.raises(ValueError, match=r"^the state is float64 of shape \(20,\), must be int64 of shape \(20,\)$"):
        ClickMeasures(8).merge(np.zeros(20))
    full = ClickMeasures(8)
    full.add([0.5], [0], [2.0**34])
    with pytest.raises(ValueError, match=r"^weights add up to more than"):
        ClickMeasures(8, state=full.state.copy()).merge(full.state)
