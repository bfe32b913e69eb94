"""YAML to values: what scalars mean, where fields stand, and what is refused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbelief.errors import JobError
from dbelief.job.document.yaml_document import read, to_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2.5E+3", -2500.0),
        ("10", 10),
        ("010", 10),
        ("+7", 7),
        ("60_000", 60000),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("FALSE", False),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("1e", "1e"),
        ("~", None),
        ("", None),
        ("null", None),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("-.inf", -math.inf),
        ("<<", "<<"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = read(f"field: {text}", "f").value
    assert found == {"field": value}
    assert type(found["field"]) is type(value)


def test_nan_is_a_float() -> None:
    value = read(".nan", "f").value
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("text", "where", "cause"),
    [
        ("a: b: c", "line 1, column 5", "not YAML: mapping values are not allowed here"),
        ("a: 1\nb: [1, 2", "line 2, column 9", "not YAML: expected ',' or ']'"),
        ("a: 'x", "line 1, column 6", "not YAML: "),
        ("a:\n\t- 1", "line 2, column 1", "not YAML: found character '\\t' that cannot start any token"),
        ("a: *there", "line 1, column 4", "not YAML: found undefined alias"),
        ("a: 1\nb: x\x01", "line 2, column 5", "not YAML: the character U+0001 is not allowed"),
        (
            "a: 1\n---\nb: 1",
            "line 2, column 1",
            "expected a single document in the stream, but found another",
        ),
        ("a: 1\nb: 2\na: 3", "line 3, column 1", "'a' is given twice, first on line 1"),
        ("x:\n  - {a: 1,\n     a: 2}", "line 3, column 6", "'a' is given twice, first on line 2"),
        ("a: &b [*b]", "line 1, column 7", "a value holds itself"),
        (
            "a: !!python/object:os.system x",
            "line 1, column 4",
            "the tag '!!python/object:os.system' has no meaning",
        ),
        ("a: !x [1]", "line 1, column 4", "the tag '!x' has no meaning"),
        ("a: !!int x", "line 1, column 4", "'x' cannot be read as int"),
        ("a: " + "9" * 5000, "line 1, column 4", "cannot be read as int"),
        ("? [1]\n: 2", "line 1, column 3", "the name of a field must be text"),
    ],
)
def test_errors_have_line_and_column(text: str, where: str, cause: str) -> None:
    with pytest.raises(JobError) as caught:
        read(text, "job.yaml")
    found = str(caught.value)
    if "holds itself" not in cause:
        assert found.startswith(f"job.yaml, {where}: ")
    assert cause in found
    assert len(found.splitlines()) == 1


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(JobError, match=r"^f: not a job: nested too deeply$"):
        read("[" * 1500, "f")


def test_nested_aliases_are_not_multiplied_out() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    found = read("\n".join(lines), "f")  # 2^59 values, if each were made
    assert len(found.lines) < 1000


def test_lines_are_of_the_field_or_of_the_section_around_it() -> None:
    found = read("a:\n  b: 1\n  c:\n    - x\n    - y\n", "f")
    assert [found.line(path) for path in [("a",), ("a", "b"), ("a", "c", 1), ("a", "zzz"), ("zzz",)]] == [
        1,
        2,
        5,
        1,
        None,
    ]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
TRICKY = st.sampled_from(
    ["no", "1e3", "1e-3", "~", "0o7", "007", "2026-01-01", "1:30", "1_0", ".inf", "", " ", "=", "<<"]
)


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5) | TRICKY, PLAIN | TRICKY, max_size=5))
def test_round_trip(value: dict[str, object]) -> None:
    assert read(to_yaml(value), "f").value == value
