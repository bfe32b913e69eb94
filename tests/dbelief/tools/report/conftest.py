"""Pictures as the tests of reports look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dbelief.tools.report.curves import draw_curves


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were written to a file; small ones, since every test draws for real."""
    figures: list[Figure] = []
    save = Figure.savefig

    def watch(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **{**options, "dpi": 20})

    monkeypatch.setattr(Figure, "savefig", watch)
    return figures


@pytest.fixture
def panels(saved: list[Figure], tmp_path: Path) -> Any:
    """Draw, and return the panels as they were saved."""

    def draw(events: list[dict[str, Any]]) -> list[Axes]:
        path = tmp_path / "curves.png"
        draw_curves(iter(events), path, "digits: 3 replicas")
        assert path.read_bytes().startswith(b"\x89PNG")
        return list(saved[-1].axes)

    return draw
