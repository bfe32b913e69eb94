"""What a script's `score` may return."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest

from dbelief.errors import UserError

pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch


def checked(found: Any, *metrics: str) -> Any:
    from dbelief.torch.scores import checked_score

    return checked_score(found, metrics)


@pytest.mark.parametrize(
    ("found", "metrics", "quality"),
    [
        (0.5, (), (0.5, None, {})),
        ((0.5, 1), (), (0.5, 1.0, {})),
        ({"loss": 0.5}, (), (0.5, None, {})),
        ({"loss": 0.5, "accuracy": 0.25, "f1": 1}, ("f1",), (0.5, 0.25, {"f1": 1.0})),
        ({"loss": 0.5, "f1": math.nan}, ("f1",), (0.5, None, {})),
    ],
)
def test_forms(found: Any, metrics: tuple[str, ...], quality: Any) -> None:
    assert tuple(checked(found, *metrics)) == quality


def test_a_result_is_a_pair_with_metrics() -> None:
    from dbelief.torch.scores import Scored

    result = Scored((0.5, 0.25), {"f1": 0.75})
    loss, accuracy = result
    assert (loss, accuracy) == (result.loss, result.accuracy) == (0.5, 0.25)
    copies: list[Scored] = [copy.copy(result), pickle.loads(pickle.dumps(result))]
    for same in (result, *copies):
        assert same.metrics == {"f1": 0.75}
    assert repr(result) == "Scored(loss=0.5, accuracy=0.25, metrics={'f1': 0.75})"
    assert Scored((0.5, None)).metrics == {}


@pytest.mark.parametrize(
    ("found", "metrics", "why"),
    [
        (
            None,
            (),
            "score returned None: give the mean loss, a pair of loss and accuracy, or a mapping of loss, accuracy",
        ),
        ({"f1": 1}, ("f1",), r"score returned {'f1': 1}: give the mean loss, .* a mapping of loss, accuracy, f1"),
        (0.5, ("f1",), "score returned no 'f1', and evaluate.metrics in the job file lists f1"),
        ({"loss": 1, "f2": 1}, (), "score returned 'f2', and evaluate.metrics in the job file lists none"),
        ({"loss": 1, "f1": None}, ("f1",), "score returned None as 'f1': must be a number, NaN where it has none"),
    ],
)
def test_what_is_refused(found: Any, metrics: tuple[str, ...], why: str) -> None:
    with pytest.raises(UserError, match=f"^{why}$"):
        checked(found, *metrics)
