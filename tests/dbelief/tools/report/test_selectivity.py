"""The best threshold of each neuron: as one by one would find it, and what must hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dbelief.tools.report.selectivity import SHARE, BestThresholds, accuracy, exact, judged, selectivity, spaced

RESPONSES = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        arrays(np.float64, (n, 3), elements=st.floats(-4, 4, width=16)),
        st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda labels: len(set(labels)) == 2),
    )
)


def one_by_one(responses: np.ndarray, labels: list[bool], share: float, signs: tuple[int, ...]) -> float:
    """The best of every threshold and sign, by the definition, of one neuron."""
    rights = []
    for sign in signs:
        signed = [sign * float(response) for response in responses]
        for threshold in [-np.inf, *signed]:
            told = [response > threshold for response in signed]
            hits = [said for said, label in zip(told, labels, strict=True) if label]
            rest = [not said for said, label in zip(told, labels, strict=True) if not label]
            rights.append(share * sum(hits) / len(hits) + (1 - share) * sum(rest) / len(rest))
    return max(rights)


@settings(deadline=None)
@given(RESPONSES, st.floats(0, 1), st.sampled_from([(1,), (1, -1)]))
def test_exact_is_the_best_of_all_thresholds_one_by_one(
    drawn: tuple[np.ndarray, list[bool]], share: float, signs: tuple[int, ...]
) -> None:
    responses, labels = drawn
    best = exact(responses, np.array(labels), share, signs)
    expected = [one_by_one(column, labels, share, signs) for column in responses.T]
    np.testing.assert_allclose(best.accuracy, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(judged(best, responses, np.array(labels), share), best.accuracy, rtol=0, atol=1e-14)
    scanned = spaced(responses, np.array(labels), share, signs)
    assert (scanned.accuracy <= best.accuracy + 1e-14).all()
    np.testing.assert_array_equal(judged(scanned, responses, np.array(labels), share), scanned.accuracy)


@pytest.mark.parametrize("f", [np.exp, np.cbrt, lambda x: 5 * x - 3, np.arctan])
def test_increasing_functions_of_a_response_change_nothing(f: Callable[[np.ndarray], np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    responses, positive = rng.standard_normal((80, 9)), rng.random(80) < 0.5
    assert np.array_equal(exact(f(responses), positive).accuracy, exact(responses, positive).accuracy)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scan", [exact, spaced])
def test_a_perfect_neuron_is_always_right_either_way(scan: Callable[..., BestThresholds], sign: int) -> None:
    positive = np.random.default_rng(2).random(60) < 0.4
    best = scan(sign * positive[:, None].astype(float), positive)
    assert (best.accuracy[0], best.sign[0]) == (1.0, sign)
    one_sided = scan(-positive[:, None].astype(float), positive, signs=(1,))
    assert one_sided.accuracy[0] == pytest.approx(1 - SHARE)


def test_a_neuron_that_knows_nothing_is_as_good_as_a_guess() -> None:
    positive = np.arange(20_000) % 2 == 0
    responses = np.random.default_rng(3).standard_normal((20_000, 4))
    best = exact(responses, positive)
    assert (best.accuracy >= 1 - SHARE).all()
    assert (best.accuracy <= 1 - SHARE + 0.01).all()
    constant = exact(np.ones((20, 1)), positive[:20])
    assert constant.accuracy[0] == 1 - SHARE
    assert np.isinf(constant.threshold[0])


def test_chance_selectivity_drops_on_other_images() -> None:
    """Of a thousand that know nothing, one looks good; of one that knows, the worth stays."""
    rng = np.random.default_rng(4)
    labels = (rng.random(80) < 0.5).astype(np.int64)
    (chance,) = selectivity(rng.standard_normal((80, 1000)), labels)
    assert chance.exact.accuracy.max() > 0.72
    assert chance.apart < 0.6
    assert (chance.images, chance.positive, chance.label) == (80, labels.sum(), 1)
    knows = np.concatenate([rng.standard_normal((80, 1000)), 3.0 * labels[:, None]], axis=1)
    (found,) = selectivity(knows, labels)
    assert found.best(1) == [(1000, 1, 1.0)]
    assert found.apart == 1.0


def test_of_three_classes_each_stands_against_the_others() -> None:
    labels = np.arange(60) % 3
    tests = selectivity((labels[:, None] == np.arange(3)) * 1.0 - (labels[:, None] == 1) * 2.0, labels)
    assert [test.label for test in tests] == [0, 1, 2]
    assert [test.positive for test in tests] == [20, 20, 20]
    assert [test.exact.accuracy.max() for test in tests] == [1.0, 1.0, 1.0]


def test_neurons_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    responses, positive = rng.standard_normal((30, 7)), rng.random(30) < 0.5
    whole = exact(responses, positive)
    monkeypatch.setattr("dbelief.tools.report.selectivity._AT_ONCE", 70)
    parts = exact(responses, positive)
    for name in ("accuracy", "threshold", "sign"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_the_share_of_the_paper() -> None:
    """Table 2: a guess is right in 64.7 or 64.8 %."""
    assert round(100 * (1 - SHARE), 2) == 64.79


def test_adjacent_floats_are_separated() -> None:
    low = np.array([[1.0], [np.nextafter(1.0, 2.0)]])
    best = exact(low, np.array([False, True]))
    assert best.accuracy[0] == 1.0
    assert accuracy(best.sign * low, np.array([False, True]), best.threshold)[0] == 1.0
