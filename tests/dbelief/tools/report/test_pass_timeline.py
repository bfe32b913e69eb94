"""The picture of a pass: a row for each replica, a bar for each bundle, and what each kind looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dbelief.tools.report.pass_timeline import draw_pass

RUNS: list[list[Any]] = [
    [0, 1, 0, 4, False, 0.0, 0.3, True],
    [3, 2, 4, 4, False, 0.1, 0.5, False],
    [0, 3, 8, 1, False, 0.3, 0.4, True],
    [0, 2, 4, 4, True, 0.4, 0.5, True],
]


@pytest.fixture
def drawn(saved: list[Figure], tmp_path: Path) -> Any:
    def draw(runs: list[list[Any]], **other: Any) -> tuple[Axes, list[Rectangle]]:
        fields = {"number": 7, "iteration": 5, "seconds": 0.5, "bundles": 3, "portions": 9, "samples": 900}
        path = tmp_path / "last_pass.png"
        draw_pass({**fields, "launched": 1, "won": 1, **other, "runs": runs}, path, "mnist")
        assert path.read_bytes().startswith(b"\x89PNG")
        (axes,) = saved[-1].axes
        return axes, [patch for patch in axes.patches if isinstance(patch, Rectangle)]

    return draw


def test_a_bar_stands_where_and_when_it_was_computed(drawn: Any) -> None:
    axes, bars = drawn(RUNS)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["replica 0", "replica 3"]
    where = [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in bars]
    expected = [(0, 300, 0), (100, 400, 1), (300, 100, 0), (400, 100, 0)]
    for found, wanted in zip(where, expected, strict=True):
        assert found == pytest.approx(wanted)
    assert [text.get_text() for text in axes.texts] == ["0–3", "4–7", "8", "4–7"]
    assert axes.get_xlabel().endswith("(ms)")
    assert axes.yaxis_inverted()


def test_backups_are_hatched_and_lost_bundles_paler(drawn: Any, saved: list[Figure]) -> None:
    _, (bundle, lost, _, backup) = drawn(RUNS)
    assert (bundle.get_hatch(), lost.get_hatch(), backup.get_hatch()) == (None, None, "////")
    assert [to_rgba(bar.get_facecolor())[3] for bar in (bundle, lost, backup)] == [1.0, 0.2, 1.0]
    (legend,) = saved[-1].legends
    kinds = [text.get_text() for text in legend.get_texts()]
    assert kinds == ["bundle", "bundle that completed too late, or never", "backup"]


def test_narrow_bars_and_crowded_rows_have_no_labels(drawn: Any) -> None:
    axes, bars = drawn([[row, row + 1, row, 1, False, 0.0, 20.0 if row else 0.01, True] for row in range(70)])
    assert len(bars) == 70
    assert [text.get_text() for text in axes.texts] == [str(row) for row in range(1, 70)]
    assert axes.get_ylabel() == "replicas"
    assert axes.get_xlabel().endswith("(s)")


def test_pass_of_another_coordinator_is_empty(drawn: Any) -> None:
    axes, bars = drawn([], seconds=0.0)
    assert bars == []
    assert axes.get_xlim()[1] > 0
