"""The curves of a batch method: over iterations, and what was rolled back is not in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from tests.dbelief.tools.report.test_curves import Events, labels


def iteration(number: int, loss: float | None = 1.0, norm: float | None = 0.5) -> dict[str, Any]:
    return {"event": "iteration", "iteration": number, "loss": loss, "gradient_norm": norm}


def a_pass(number: int, seconds: float) -> dict[str, Any]:
    return {"event": "pass", "iteration": number, "seconds": seconds}


def evaluation(accuracy: float | None, kind: str = "validation") -> dict[str, Any]:
    return {"event": "evaluation", "set": kind, "samples": 5, "loss": 0.5, "accuracy": accuracy}


def points(axes: Axes) -> list[tuple[list[float], list[float]]]:
    return [(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in axes.get_lines()]


def test_every_series_is_drawn_over_iterations(panels: Any) -> None:
    events = [
        {"event": "progress", "samples": 10, "loss": 3.0},
        a_pass(1, 0.2),
        a_pass(1, 0.3),
        iteration(1, 2.0, 1.0),
        evaluation(0.5),
        a_pass(2, 0.1),
        iteration(2, 1.0, 0.001),
        evaluation(0.75, kind="test"),
    ]
    loss, gradient, accuracy, passes = panels(events)
    assert points(loss) == [([1, 2], [2.0, 1.0]), ([1], [0.5])]
    assert points(gradient) == [([1, 2], [1.0, 0.001])]
    assert (loss.get_yscale(), gradient.get_yscale()) == ("linear", "log")
    assert labels(accuracy) == ["validation, best: 50.00 %", "test: 75.00 %"]
    at, times = points(passes)[0]
    assert at == [1, 1, 2]
    assert times == pytest.approx([200, 300, 100])
    assert labels(passes) == ["median 200 ms"]
    assert passes.get_xlabel() == "iterations"


def test_rolled_back_iterations_are_replaced(panels: Any) -> None:
    first = [event for number in (1, 2, 3) for event in (a_pass(number, 20.0), iteration(number, 9.0))]
    loss, _, passes = panels([*first, a_pass(2, 10.0), iteration(2, 4.0)])
    assert points(loss) == [([1, 2], [9.0, 4.0])]
    assert points(passes)[0] == ([1, 2, 2], [20.0, 20.0, 10.0])
    assert passes.get_ylabel() == "time of a pass (s)"


def test_without_accuracy_there_is_no_panel_of_it(panels: Any) -> None:
    assert len(panels([iteration(1), evaluation(None)])) == 2


@pytest.mark.parametrize(
    ("events", "drawn"),
    [
        ([a_pass(1, 0.0)], ["time of a pass (ms)"]),
        ([iteration(1, None, None), iteration(2)], ["loss", "gradient norm"]),
        ([iteration(1, -1, 0)], ["loss", "gradient norm"]),
    ],
)
def test_any_series_may_be_missing(panels: Any, events: Events, drawn: list[str]) -> None:
    assert [panel.get_ylabel() for panel in panels(events)] == drawn
