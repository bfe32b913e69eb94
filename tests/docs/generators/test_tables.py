import pytest

from docs.generators.tables import Undocumented, plain, required, table


def test_a_cell_may_hold_a_bar() -> None:
    assert table(("a", "b"), [("x|y", "z")]) == "| a | b |\n|---|---|\n| x\\|y | z |\n"


def test_a_description_is_one_line_and_not_empty() -> None:
    assert required("two\n  lines", "field x") == "two lines"
    for empty in (None, "", " \n"):
        with pytest.raises(Undocumented, match="field x has no description"):
            required(empty, "field x")


def test_characters_with_a_meaning_in_markdown_are_escaped_outside_code() -> None:
    assert plain("a_b <c> `d_e` [f]") == r"a\_b &lt;c&gt; `d_e` \[f\]"
