"""The picture of a sweep shows the criterion of every combination, the best one, and where runs failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dbelief.tools.experiments.sweep.grid import points
from dbelief.tools.experiments.sweep.plots import draw_grid
from dbelief.tools.experiments.sweep.rows import DONE, FAILED, RunRow


def rows(sets: dict[str, str], *accuracies: float | None) -> list[RunRow]:
    """A row for each point of the grid; None: the run failed."""
    return [
        RunRow(point.name, point.settings, FAILED if accuracy is None else DONE, "", validation_accuracy=accuracy)
        for point, accuracy in zip(points(sets), accuracies, strict=True)
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draw rows; the axes, whose file is not made."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def draw(found: list[RunRow]) -> Axes:
        assert draw_grid(found, tmp_path / "sweep.png", "small")
        return figures[-1].axes[0]

    return draw


def points_of(axes: Axes, label: str) -> list[tuple[float, float]]:
    (line,) = [line for line in axes.get_lines() if str(line.get_label()).startswith(label)]
    return list(zip(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist(), strict=True))


def test_one_field_is_a_line_over_its_values(drawn: Any) -> None:
    axes = drawn(rows({"lr": "0.1,0.01,0.001", "seed": "0,1"}, 0.5, 0.25, None, 0.75, 0.25, 0.25))
    assert axes.get_xscale() == "log"
    assert points_of(axes, "validation accuracy, mean of seeds") == [(0.01, 25.0), (0.1, 62.5)]
    assert points_of(axes, "best: 0.1") == [(0.1, 62.5)]
    assert [at for at, _ in points_of(axes, "a run failed")] == [0.001]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]


def test_values_that_are_no_numbers_stand_in_their_order(drawn: Any) -> None:
    axes = drawn(rows({"strategy": "{name: easgd},{name: downpour}"}, 0.5, 0.75))
    assert axes.get_xscale() == "linear"
    assert points_of(axes, "best: {name: downpour}") == [(1.0, 75.0)]


def test_two_fields_are_a_table(drawn: Any) -> None:
    axes = drawn(rows({"lr": "0.01,0.1", "limits.epochs": "5", "strategy.batch": "32,8"}, 0.5, None, 0.25, 0.75))
    cells = {tuple(map(float, text.get_position())): text.get_text() for text in axes.texts}
    assert cells == {(0.0, 0.0): "failed", (1.0, 0.0): "50.00", (0.0, 1.0): "75.00", (1.0, 1.0): "25.00"}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["8", "32"]
    (frame,) = axes.patches
    assert frame.get_xy() == (-0.5, 0.5)


def test_several_fields_are_combined_downwards(drawn: Any) -> None:
    axes = drawn(rows({"a": "1,2", "x.b": "x,y", "c": "5,6"}, *(number / 10 for number in range(8))))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1, x", "1, y", "2, x", "2, y"]
    assert axes.get_ylabel() == "a, b"


@pytest.mark.parametrize(
    "found", [[], rows({"lr": "1"}, None), rows({"seed": "0,1"}, 0.5, 0.5)], ids=["none", "failed", "only seeds"]
)
def test_nothing_is_drawn_where_nothing_can_be_compared(found: list[RunRow], tmp_path: Path) -> None:
    assert not draw_grid(found, tmp_path / "sweep.png", "small")
    assert not list(tmp_path.iterdir())
