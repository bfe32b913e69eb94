"""The list `evaluate.metrics`: what is accepted, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import JobError
from dbelief.job import Job, OwnMetric
from dbelief.job.metrics import higher_is_better, name_of
from tests.jobs import small_job

NAMES = "one of auc, log_loss, perplexity, calibration_error, top_5, mae, rmse, r2 (or top_ with another number)"


def job(evaluate: dict[str, Any], **fields: Any) -> Job:
    return small_job(Path("/jobs"), "f", evaluate=evaluate, **fields)


def test_names_and_functions() -> None:
    own = {"name": "f1", "python": "a.py:f1", "better": "lower"}
    found = job({"metrics": ["auc", "top_3", own, "log_loss"]}).evaluate.metrics
    assert [name_of(one) for one in found] == ["auc", "top_3", "f1", "log_loss"]
    assert [higher_is_better(one) for one in found] == [True, True, False, False]
    anchored = job({"metrics": [own]}).anchored().evaluate.metrics[0]
    assert isinstance(anchored, OwnMetric)
    assert anchored.python == "/jobs/a.py:f1"


@pytest.mark.parametrize(
    ("evaluate", "fields", "why"),
    [
        ({"metrics": ["acc"]}, {}, f"evaluate.metrics.0: must be {NAMES}"),
        ({"metrics": [{"name": "F1", "python": "a.py:f"}]}, {}, "evaluate.metrics.0.name: "),
        (
            {"metrics": [{"name": "f1", "python": "a.py:f", "better": "up"}]},
            {},
            "evaluate.metrics.0.better: must be",
        ),
        ({"metrics": [{"name": "f1"}]}, {}, "evaluate.metrics: must have python, file.py:function, for f1"),
        ({"metrics": ["auc", "auc"]}, {}, "evaluate.metrics: must have each metric once, and auc is listed twice"),
        (
            {"metrics": [{"name": "loss", "python": "a.py:f"}]},
            {},
            "evaluate.metrics: must have each metric once, and loss is always measured",
        ),
        ({"best_by": "auc"}, {}, "evaluate.best_by: must be one of metrics (none), not 'auc'"),
        (
            {"metrics": ["auc"]},
            {"limits": {"epochs": 1, "validation_metrics": {"mae": 1.0}}},
            "limits.validation_metrics: must name metrics of evaluate.metrics (auc): mae",
        ),
        (
            {"metrics": ["auc"]},
            {"model": {"layers": [{"dense": 10}], "loss": "one_vs_all"}},
            "evaluate.metrics: must not have auc with loss one_vs_all, which gives no probabilities",
        ),
        (
            {"metrics": ["auc"]},
            {"data": {"source": "none"}, "replicas": 0, "limits": {"samples": 10}, "model": {"python": "a.py:b"}},
            "evaluate.metrics: must be [] where data.source is none: nothing is evaluated",
        ),
        (
            {"metrics": ["auc"]},
            {"model": {"source": "script"}, "data": {"source": "script", "train": 10}},
            "evaluate.metrics: must be {name: auc, better: ...} with a script, whose score returns the value",
        ),
        (
            {"metrics": ["auc"]},
            {"grid": [2]},
            "evaluate.metrics: must be [] where grid cuts the model: no rank has",
        ),
        (
            {"metrics": ["auc"], "best_by": "auc"},
            {"data": {"source": "idx", "folder": "x", "validation": 0}},
            "evaluate.best_by: needs validation data, and the data section gives none",
        ),
    ],
)
def test_what_does_not_fit_is_refused(evaluate: dict[str, Any], fields: dict[str, Any], why: str) -> None:
    with pytest.raises(JobError) as refused:
        job(evaluate, **fields)
    assert str(refused.value).startswith(f"f: {why}"), refused.value
