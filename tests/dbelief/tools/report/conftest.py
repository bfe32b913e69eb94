"""Pictures as the tests of reports look at them."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure


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
