"""Measurement files: what a command printed becomes figures, tables and pictures, and is compared with its spread."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from docs.generators import measurements, plots
from docs.generators.measurements import Again, Column, Measurement, figures_in, parse

MEASURED = {
    "command": "python -m benchmarks.some.thing",
    "day": "2026-01-02",
    "processor": "A processor",
    "cores": 2,
    "commit": "12345678",
}


def _measurement(figures: Any, columns: list[list[str]], **recipe: Any) -> Measurement:
    table = {"columns": columns, **recipe}
    return parse("thing", {"measured": MEASURED, "settings": "Medians.", "figures": figures, "tables": {"": table}})


def test_origin_has_command_machine_and_settings() -> None:
    text = _measurement({}, []).origin()
    assert text == "`python -m benchmarks.some.thing`; 2026-01-02, A processor, 12345678. Medians.\n"


@pytest.mark.parametrize(
    ("row", "text", "cell"),
    [
        ({"s": 0.00149}, "{s!m:.1f}", "1.5"),
        ({"s": 2**20 * 3}, "{s!i:.0f} MiB", "3 MiB"),
        ({"s": [0.1, 0.25]}, "{s!c:.0f}", "10, 25"),
        ({"s": [3, 4]}, "{s!t}", "7"),
        ({"s": []}, "{s!t}", ""),
        ({"s": None}, "{s:.1f}", ""),
        ({}, "{s:.1f}", ""),
        ({"s": {"p50": 1.26}}, "{s[p50]:.1f}", "1.3"),
        ({"s": "shm"}, "{s}", "shared memory"),
        ({"s": 0.971}, "{s:.0%}", "97%"),
    ],
)
def test_cells(row: dict[str, Any], text: str, cell: str) -> None:
    rows = [{"name": "a", "always": 1, **row}]
    found = _measurement(
        {"rows": rows}, [["name", "{name}"], ["", "{always}"], ["", text]], words={"shm": "shared memory"}
    )
    assert found.cells() == [["a", "1", cell]]


def test_rows_are_chosen_and_pivoted() -> None:
    ways = [
        {"way": way, "what": what, "mib": mib, "ms": ms}
        for way, what, mib, ms in (
            ("a", "pull", 64, 5.0),
            ("a", "push", 64, 9.0),
            ("b", "pull", 64, 7.0),
            ("a", "pull", 1, 77.0),
            ("b", "pull", 64, 99.0),  # measured once more, beside a library that keeps cores busy
            ("c", "reply", 64, 1.0),
        )
    ]
    found = _measurement(
        {"inner": {"ways": ways}},
        [["way", "{way}"], ["pull", "{pull:.1f}"], ["push", "{push:.1f}"]],
        rows="inner.ways",
        where={"mib": 64},
        pivot=["way", "what", "ms"],
    )
    assert found.table().splitlines()[2:] == ["| a | 5.0 | 9.0 |", "| b | 7.0 |  |"]


def test_figures_may_be_the_row_itself() -> None:
    assert _measurement({"ms": 3.0}, [["", "one"], ["", "{ms:.1f}"]], rows="").cells() == [["one", "3.0"]]


@pytest.mark.parametrize(
    ("rows", "reason"), [([], "no row for the table"), ([{"name": "a", "x": 1}], "'{y}' fits none of the rows")]
)
def test_a_recipe_that_fits_nothing_is_refused(rows: list[Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _measurement({"rows": rows}, [["name", "{name}"], ["x", "{x}"], ["y", "{y}"]]).table()


def test_figures_are_the_last_line_of_json() -> None:
    assert figures_in('{"a": 1}\nnoise\n{"measured": {}, "b": 2}\nmore\n', ()) == {"b": 2}
    with pytest.raises(ValueError, match="no line of JSON"):
        figures_in("noise\n", ())


def test_figures_by_pattern() -> None:
    output = "== 1,234 passed, 3 skipped in 12.5s ==\n== 5 passed, 0 skipped in 1.0s ==\n"
    pattern = r"== (?P<passed>[\d,]+) passed, (?P<skipped>\d+) (?P<what>\w+) in (?P<seconds>[\d.]+)s"
    rows = figures_in(output, (pattern,))["rows"]
    assert rows == [
        {"passed": 1234, "skipped": 3, "what": "skipped", "seconds": 12.5},
        {"passed": 5, "skipped": 0, "what": "skipped", "seconds": 1.0},
    ]
    with pytest.raises(ValueError, match="nothing like"):
        figures_in("noise", (pattern,))


@pytest.mark.parametrize(
    ("spread", "old", "new", "used"),
    [
        ("30 %", 10, 13, 1.0),
        ("30 %", -10, -16, 2.0),
        ("0.2", 98, 98.1, 0.5),
        ("30 %", 0, 0.1, math.inf),
        ("", 5, 5, 0.0),
        ("", 5, 6, math.inf),
    ],
)
def test_spread(spread: str, old: float, new: float, used: float) -> None:
    assert Column("x", "{x}", spread).used(old, new) == pytest.approx(used)


def test_what_is_measured_again_is_compared_cell_by_cell() -> None:
    columns = [["way", "{way}"], ["ms", "{s!m:.1f}", "10 %"], ["runs", "{runs}"], ["peer", "{peer}", "10 %"]]
    old = _measurement({"rows": [{"way": "a", "s": 1.0, "runs": 3, "peer": 2.0}]}, columns)
    new = _measurement({"rows": [{"way": "a", "s": 1.0625, "runs": 4}]}, columns)
    assert list(measurements.compared(old, new)) == [
        Again("a", "way", True, "a", "a", 0.0),
        Again("a", "ms", False, "1000.0", "1062.5", 0.625),
        Again("a", "runs", False, "3", "4", math.inf),
        Again("a", "peer", False, "2.0", "", math.inf),
    ]
    more = _measurement({"rows": [{"way": "a"}, {"way": "b"}]}, columns)
    with pytest.raises(ValueError, match="2 rows, and the file has 1"):
        list(measurements.compared(old, more))


def test_a_file_keeps_what_it_holds(tmp_path: Path) -> None:
    found = {"measured": MEASURED, "figures": {"n": 1, "rows": [{"a": 1}, {"b": "µ"}]}, "tables": {"": {"columns": []}}}
    text = measurements.text_of(found)
    assert json.loads(text) == found
    assert '   {"a": 1},\n' in text


def test_a_file_that_no_benchmark_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kills.json").write_text(json.dumps({"figures": {}, "tables": {}}))
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"kills\.json: not a measurement file: KeyError\('measured'\)"):
        measurements.load("kills")


@pytest.mark.parametrize("name", plots.PICTURES)
def test_a_picture_shows_the_numbers_of_its_file(name: str) -> None:
    drawn = plots.svg(name)
    assert drawn == plots.svg(name), "the same files give the same picture"
    written = re.findall(r">([^<>]+)</t(?:ext|span)>", drawn)
    staleness = [f"staleness {row['staleness']:.1f}" for row in measurements.load("replicas").figures["results"]]
    step = measurements.load("lenet_step").figures
    quality = measurements.load("diloco_quality").figures["means"]
    wanted = {
        "replicas": [*staleness, "test accuracy"],
        "kills": ["registry", "3 of 3 completed"],
        "speed": [f"{step['step_ms']:.1f}", f"{step['torch_ms']:.1f}", "dbelief, shared memory"],
        "diloco": [*(f"{way['fewer']:.0f}×" for way in quality if way["fewer"]), "one learner alone"],
    }
    assert not [text for text in wanted[name] if not any(text in line for line in written)], written
