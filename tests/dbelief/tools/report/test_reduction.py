"""The table of a reduction: figures of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import DataError
from dbelief.tools.report.reduction import ReductionReport, read_reduction
from tests.terminal import shown

TREE = [(1, 0), (2, 0), (0, 1), (0, 2), (3, 2), (2, 3)]


def fields(edges: list[tuple[int, int]], ranks: int = 4, **more: Any) -> dict[str, Any]:
    """After 10 steps, of 2 messages and 4 KiB each; what rank 3 takes from rank 2 takes 50 ms, all else 1 ms."""
    return {
        "generation": 2,
        "way": "tree",
        "arity": None,
        "chunk": None,
        "wire": None,
        "workers": [{"replica": 5 + rank, "steps": 10} for rank in range(ranks)],
        "edges": [
            {"to": to, "source": one, "messages": 20, "bytes": 40960, "seconds": 0.5 if to == 3 else 0.01}
            for one, to in edges
        ],
        **more,
    }


def test_table_has_a_row_per_edge_with_step_figures() -> None:
    _, title, _, *rows = shown(ReductionReport(fields(TREE)).table())
    assert title.strip() == "sums: a binomial tree of 4 workers; 10 steps of generation 2; each step"
    assert " ".join(rows[0].split()) == "1 (replica 6) 0 (replica 5) 2 4 KiB 1 ms"
    assert " ".join(rows[-1].split()) == "2 (replica 7) 3 (replica 8) 2 4 KiB 50 ms"
    assert len(rows) == len(TREE)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"way": "server"}, "a server of 4 workers; "),
        ({"way": "ring", "wire": "float16"}, "a ring of 4 workers, in float16; "),
        ({"arity": 2, "chunk": 5000}, "a tree of arity 2 of 4 workers, in chunks of 5,000; "),
    ],
)
def test_how_they_sum_is_said(more: dict[str, Any], words: str) -> None:
    assert ReductionReport(fields(TREE, **more)).described().startswith(words)


def test_missing_reduction_is_none_and_broken_one_is_named(tmp_path: Path) -> None:
    assert read_reduction(tmp_path) is None
    (tmp_path / "reduction.json").write_text("{}")
    with pytest.raises(DataError, match=r"reduction\.json: is no reduction"):
        read_reduction(tmp_path)
