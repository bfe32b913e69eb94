"""The form of samples as text: what is written is read, anything else is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core import sample_form
from dbelief.core.sample_form import SampleForm

NAMES = st.none() | st.lists(st.text(max_size=8), min_size=1, max_size=5).map(tuple)


@given(
    st.lists(st.integers(1, 1 << 20), max_size=3).map(tuple),
    st.integers(1, 1000),
    st.floats(1e-30, 1e30),
    NAMES,
    NAMES,
)
def test_a_form_that_was_written_is_read(
    features: tuple[int, ...],
    outputs: int,
    scale: float,
    names: tuple[str, ...] | None,
    columns: tuple[str, ...] | None,
) -> None:
    form = SampleForm(features, outputs, len(names) if names else None, scale, names, columns)
    assert SampleForm.parse(form.text) == form
    assert "\n" not in form.text


def test_names_are_left_out_where_they_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    form = SampleForm((2,), 2, 2, 1.0, ("a", "b"), ("x" * 300, "y"))
    monkeypatch.setattr(sample_form, "MOST_CHARACTERS", 200)
    assert form.shortened() == SampleForm((2,), 2, 2, 1.0, ("a", "b"))
    long = SampleForm((2,), 2, 2, 1.0, ("a" * 300, "b"), ("x", "y"))
    assert long.shortened() == SampleForm((2,), 2, 2, 1.0)
    assert long.shortened().shortened() == long.shortened()
    with pytest.raises(ValueError, match=r"no form of samples: .* at most 200 are allowed"):
        SampleForm.parse(long.text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        "[" * 100_000,
        json.dumps({"features": [2], "outputs": 1, "classes": None, "scale": 1, "names": None}),
        json.dumps({"features": [2], "outputs": 1, "classes": None, "scale": 10**400, "names": None, "columns": None}),
        json.dumps({"features": [-2], "outputs": 1, "classes": None, "scale": 1, "names": None, "columns": None}),
        json.dumps({"features": [2], "outputs": True, "classes": None, "scale": 1, "names": None, "columns": None}),
        json.dumps({"features": [2], "outputs": 1, "classes": None, "scale": "x", "names": None, "columns": None}),
        json.dumps({"features": [2], "outputs": 1, "classes": None, "scale": 1, "names": "ab", "columns": None}),
        json.dumps({"features": [2], "outputs": 2, "classes": 2, "scale": 1, "names": ["a"], "columns": None}),
    ],
)
def test_text_that_is_no_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no form of samples: "):
        SampleForm.parse(text)


def test_text_without_the_kind_of_inputs_is_of_numbers() -> None:
    row = {"features": [2], "outputs": 1, "classes": None, "scale": 1.0, "names": None, "columns": None}
    assert SampleForm.parse(json.dumps(row)) == SampleForm((2,), 1)


def test_the_first_difference_is_named() -> None:
    form = SampleForm((2,), 3, 3, 0.5, ("a", "b", "c"), ("x", "y"))
    assert form.difference(form) == ""
    assert form.difference(SampleForm((4, 4), 3, 3)) == "a sample's shape is 2, not 4, 4"
    other = SampleForm((2,), 3, 3, 0.5, ("a", "b", "d" * 100), ("x", "y"))
    assert form.difference(other) == f"the names of the classes are a, b, c, not a, b, {'d' * 54}..."
    assert SampleForm.of_script({"a": 1}).difference(SampleForm.of_script({"a": 2})) == (
        "what is said about a is 1, not 2"
    )
    assert SampleForm.of_script({"a": 1}).difference(SampleForm.of_script({"b": (1,)})) == (
        "what is said about a is 1, not None"
    )
    assert form.difference(SampleForm((2,), 3, 3, 0.5)) == "the names of the classes are a, b, c, not None"


@pytest.mark.parametrize("about", [{}, {"vocabulary": {"a": 0, "b": 1}, "scale": 0.5, "names": ["x", None, True]}])
def test_what_a_script_says_is_kept(about: dict[str, Any]) -> None:
    form = SampleForm.of_script(about)
    assert SampleForm.parse(form.text) == form
    assert form.about == about


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ([1], "about: must be a mapping of names, which are texts"),
        ({1: 2}, "about: must be a mapping of names, which are texts, and 1 is none"),
        ({"a": [{1: 2}]}, "about: must be a mapping of names, which are texts, and 1 is none"),
        ({"a": {1, 2}}, "about: Object of type set is not JSON serializable"),
        ({"a": float("nan")}, "about: Out of range float values are not JSON compliant"),
        ({"a": "x" * (1 << 20)}, "about: 1,048,7"),
    ],
)
def test_what_no_file_can_hold_is_refused(about: Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}"):
        SampleForm.of_script(about)
