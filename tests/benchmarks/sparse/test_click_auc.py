"""The log of clicks, its measures, and the ways of the benchmark on a few samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from benchmarks.sparse import click_auc, logit_measures
from benchmarks.sparse.click_log import BIAS, COLUMNS, DEVIATION, FADING, KEYS, ClickLog, ranks_of
from benchmarks.sparse.ftrl import FtrlSetting
from dbelief.sparse.row_hash import table_salt, uniform_rows
from tests.examples import examples


def test_a_unit_is_the_same_in_each_call_and_in_each_log_of_the_seed() -> None:
    log = ClickLog(3, 50, 10, 4)
    assert list(log.units) == ["10", "11", "12", "13"]
    again, other = ClickLog(3, 50, 0, 20).draw(11), ClickLog(4, 50, 0, 20).draw(11)
    for mine, same, different in zip(log.draw(11), again, other, strict=True):
        np.testing.assert_array_equal(mine, same)
        assert (mine != different).any()
    (batch,) = log.read("11")
    assert batch.bags["features"].keys.reshape(50, -1).tolist() == again.keys.tolist()
    assert batch.bags["features"].offsets.tolist() == list(range(0, 50 * len(COLUMNS), len(COLUMNS)))
    whole = log.whole()
    np.testing.assert_array_equal(whole.logits[50:100], again.logits)
    assert whole.keys.shape == (200, len(COLUMNS))


def test_a_logit_is_the_sum_of_weights_by_key() -> None:
    clicks, salt = ClickLog(5, 20, 0, 1).draw(0), table_salt(5, "true weights")
    firsts = np.cumsum([0, *(column.ids for column in COLUMNS)])
    for keys, logit in zip(clicks.keys, clicks.logits, strict=True):
        parts = [
            uniform_rows(np.array([key]), salt, 1, DEVIATION * 3**0.5)[0, 0] / (key - first + 1) ** FADING
            for key, first in zip(keys.tolist(), firsts[:-1], strict=True)
        ]
        assert logit == pytest.approx(BIAS + sum(parts), abs=1e-5)
    assert uniform_rows(np.arange(KEYS), salt, 1, 3**0.5).std() == pytest.approx(1, abs=0.01)


def test_ids_follow_the_law_and_labels_the_logits() -> None:
    clicks = ClickLog(1, 100_000, 0, 1).draw(0)
    assert 0 <= clicks.keys.min() <= clicks.keys.max() < KEYS
    first = 0
    for column, own in zip(COLUMNS, clicks.keys.T, strict=True):
        ranks = own - first + 1
        assert 1 <= ranks.min() <= ranks.max() <= column.ids
        edges = np.arange(1, 7.0) ** (1 - column.exponent)
        wanted = (edges[:-1] - edges[1:]) / (1 - (column.ids + 1) ** (1 - column.exponent))
        np.testing.assert_allclose(np.bincount(ranks, minlength=6)[1:6] / 100_000, wanted, atol=0.006)
        first += column.ids
    p = 1 / (1 + np.exp(-clicks.logits))
    for low in (0.0, 0.2, 0.5):
        within = (p >= low) & (p < low + 0.2)
        assert clicks.labels[within].mean() == pytest.approx(p[within].mean(), abs=0.02)
    assert (ranks_of(np.full((1, 8), np.nextafter(1, 0))) <= [column.ids for column in COLUMNS]).all()


@examples(60)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])), min_size=2, max_size=12)
)
def test_the_auc_is_the_share_of_pairs(drawn: list[tuple[int, float]]) -> None:
    """A count over all pairs of two samples, of which one is a click and the other none."""
    scores, p = (np.array(part, float) for part in zip(*drawn, strict=True))
    above = pairs = 0.0
    for i, j in np.ndindex(len(p), len(p)):
        if i != j:
            pairs += p[i] * (1 - p[j])
            above += p[i] * (1 - p[j]) * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    if not pairs:
        assert np.isnan(logit_measures.auc(scores, p))
        return
    assert logit_measures.auc(scores, p) == pytest.approx(above / pairs, abs=1e-9)
    assert logit_measures.auc(scores, p) <= logit_measures.auc(p, p) + 1e-9


def test_measures_of_labels_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 2, 500), np.round(rng.standard_normal(500), 1)
    p = 1 / (1 + np.exp(-logits))
    assert logit_measures.auc(logits, labels) == pytest.approx(roc_auc_score(labels, logits))
    assert logit_measures.log_loss(logits, labels) == pytest.approx(log_loss(labels, p))
    assert logit_measures.accuracy(logits, labels) == accuracy_score(labels, logits > 0)
    assert np.isnan(logit_measures.auc(logits, np.ones(500)))


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.torch
def test_one_worker_is_the_one_process_and_two_are_near() -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    best, one, worker, two = click_auc.measure(60, 200, 10, [1, 2], 0, FtrlSetting(0.2))
    assert 0.5 < one["auc"] < best["auc"] < 0.95
    assert abs(worker["beside_one"]) < 1e-5  # the same steps, in float32
    assert abs(two["beside_one"]) < 0.03
    assert (worker["staleness"], best["below_bayes"]) == (0, 0)
