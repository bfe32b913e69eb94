"""Pages of results: tables are those of the measurement files, and the text claims no figure that stands in none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generators import measurements, results

WORDS = 12_000
PAGE = """\
# A page

<!-- table: lenet_step -->

old
<!-- end -->

Wanted: 0.5.
"""


@pytest.mark.parametrize("path", results.pages(), ids=lambda path: path.stem)
def test_tables_are_those_of_the_files(path: Path) -> None:
    page = path.read_text()
    assert page == results.with_tables(page), "write them anew: python -m docs.generators.results"


@pytest.mark.parametrize("path", results.pages(), ids=lambda path: path.stem)
def test_figures_of_the_text_stand_in_a_table(path: Path) -> None:
    """Those of the index stand on the other pages."""
    others = [other.read_text() for other in results.pages()] if path.stem == "index" else []
    assert list(results.unfounded(path.read_text(), *others)) == []


def test_every_number_of_the_indexs_figures_stands_on_another_page() -> None:
    index, *pages = (path.read_text() for path in results.pages())
    rows = [line.split(" | ") for line in index.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    figures = "\n".join(row[1] for row in rows)
    assert len(rows) > 20
    assert list(results.unfounded(figures, *pages, strict=True)) == []


def test_figures_of_the_readme_stand_in_a_table() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (section,) = re.findall(r"^## What was measured\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    assert "98." in section
    assert list(results.unfounded(section, *(path.read_text() for path in results.pages()))) == []


def test_every_file_is_shown() -> None:
    shown = {name for path in results.pages() for name in results.files_of(path.read_text())}
    assert shown == set(measurements.names())


def test_results_can_be_read() -> None:
    words = sum(len(path.read_text().split()) for path in results.pages())
    assert len(results.pages()) >= 9
    assert words <= WORDS


def test_a_table_is_replaced_and_the_text_stays() -> None:
    page = results.with_tables(PAGE)
    assert page.startswith("# A page\n\n<!-- table: lenet_step -->\n\n`python -m benchmarks.workers.lenet_step`; ")
    assert page.endswith(" |\n\n<!-- end -->\n\nWanted: 0.5.\n")
    assert "old" not in page
    assert results.with_tables(page) == page


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("It takes 9.8 ms.", []),
        ("It takes 10 ms.", []),
        ("It takes 9.7 ms, 62 % and 3 s.", ["9.7 ms", "62 %", "3 s"]),
        ("With 7 shards, `9.7 ms` and [a link](x.md#9.7).", []),
        ("1.25 times", ["1.25 times"]),
    ],
)
def test_figures_without_a_source_are_found(text: str, wrong: list[str]) -> None:
    page = "<!-- table: x -->\n\n| 9.8 | 0.62 |\n\n<!-- end -->\n\n"
    assert list(results.unfounded(page + text)) == wrong
    assert list(results.unfounded(page + text, "9.7 ms, 62 %, 3 s, 1.25")) == []
