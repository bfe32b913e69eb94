"""Examples whose layers read tables, on a9a, beside logistic regression of the same rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from .conftest import Operator

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.long
@pytest.mark.parametrize("name", ["fm", "wide_and_deep"])
def test_it_is_better_than_logistic_regression(name: str, operator: Operator) -> None:
    """On rows that neither is trained on."""
    folder = os.environ.get("DBELIEF_DATA")
    if folder is None or not (Path(folder) / "a9a" / "a9a").exists():
        pytest.skip("DBELIEF_DATA names no folder with a9a/a9a")
    summary = operator.trained(name, EXAMPLES / f"{name}.yaml")
    train, test = (load_svmlight_file(f"{folder}/a9a/{file}", n_features=123) for file in ("a9a", "a9a.t"))
    logistic = LogisticRegression(max_iter=1000).fit(*train)
    predicted = logistic.predict_proba(test[0])[:, 1]
    loss, auc = log_loss(test[1], predicted), roc_auc_score(test[1], predicted)
    print(f"{name}: test loss {summary['test_loss']:.4f}, AUC {summary['test_metrics']['auc']:.4f}; "
          f"logistic regression {loss:.4f}, {auc:.4f}")  # fmt: skip
    assert summary["test_loss"] < loss
    assert summary["test_metrics"]["auc"] > auc
