from pathlib import Path

import pytest

from docs.generators.hook import GENERATED, MARK, ROOT, with_generated, without_outer_links


def test_every_generator_has_one_place_and_every_mark_a_generator() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    named = [name for page in pages for name in MARK.findall(page.read_text())]
    assert sorted(named) == sorted(GENERATED)


def test_a_mark_is_replaced() -> None:
    assert with_generated("# x\n\n<!-- generated: summary -->\n").startswith("# x\n\n| field | meaning |")
    with pytest.raises(KeyError, match="unknown"):
        with_generated("<!-- generated: unknown -->")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("see [the rules](../../deploy/prometheus/rules.yml).", "see the rules."),
        ("[x](../results/deployment.md#tests) stays", "[x](../results/deployment.md#tests) stays"),
        ("[x](../../README.md#two-commands)", "x"),
        ("[x](../../missing.md)", "[x](../../missing.md)"),
        ("![x](../pictures/filters.png)", "![x](../pictures/filters.png)"),
    ],
)
def test_links_out_of_the_site_become_text(before: str, after: str) -> None:
    assert without_outer_links(before, Path(ROOT / "docs" / "reference" / "cli.md")) == after
