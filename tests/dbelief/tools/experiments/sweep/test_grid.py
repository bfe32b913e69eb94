"""From fields with values to combinations and their names."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import UserError
from dbelief.job.document.section import PATTERN_NAME
from dbelief.tools.experiments.sweep.grid import points


def test_every_combination_once_the_first_field_slowest() -> None:
    found = points({"lr": "0.02,0.04", "strategy.batch": "32, 64"})
    assert [dict(point.settings) for point in found] == [
        {"lr": "0.02", "strategy.batch": "32"},
        {"lr": "0.02", "strategy.batch": "64"},
        {"lr": "0.04", "strategy.batch": "32"},
        {"lr": "0.04", "strategy.batch": "64"},
    ]
    assert [point.name for point in found] == [
        "lr-0.02_batch-32",
        "lr-0.02_batch-64",
        "lr-0.04_batch-32",
        "lr-0.04_batch-64",
    ]
    assert found[2].words == "lr=0.04 strategy.batch=32"


def test_seeds_change_slowest_wherever_they_stand() -> None:
    found = points({"lr": "1,2", "seed": "0,1"})
    assert [point.words for point in found] == ["lr=1 seed=0", "lr=2 seed=0", "lr=1 seed=1", "lr=2 seed=1"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[1,2],[2]", ["[1,2]", "[2]"]),
        ("{name: sgd, rate: 0.1},{name: adam, rate: 0.01}", ["{name: sgd, rate: 0.1}", "{name: adam, rate: 0.01}"]),
        ("'a,b',\"c,d\"", ["'a,b'", '"c,d"']),
        ("it's,${DATA}/a", ["it's", "${DATA}/a"]),
        ("null,0", ["null", "0"]),
        ("1,1,2", ["1", "2"]),
    ],
)
def test_commas_of_a_value_s_own(text: str, values: list[str]) -> None:
    assert [point.settings["a"] for point in points({"a": text})] == values


@pytest.mark.parametrize("text", ["", ",", "1,", "1,,2", " ,1"])
def test_a_value_that_is_missing(text: str) -> None:
    with pytest.raises(UserError, match=rf"^--set lr={re.escape(text)}: a value is missing; none is written null$"):
        points({"lr": text})


def test_empty_sweep_or_reserved_field_is_refused() -> None:
    with pytest.raises(UserError, match=r"^nothing to sweep: give values of a field"):
        points({})
    for field in ("name", "output"):
        with pytest.raises(UserError, match=rf"^--set {field}=a,b: runs are named by their settings"):
            points({field: "a,b"})


FIELDS = st.sampled_from(["lr", "strategy.batch", "schedule.scale.batch", "strategy.rule.mu", "seed", "data.folder"])
TEXTS = st.text("ab/[]{}' .-_=é0123456789", min_size=1, max_size=90).filter(lambda text: text.strip())


@given(st.dictionaries(FIELDS, st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_names_are_jobs_names_and_tell_all_runs_apart(axes: dict[str, list[str]]) -> None:
    sets = {field: ",".join(values) for field, values in axes.items()}
    found = points(sets)
    names = [point.name for point in found]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(PATTERN_NAME, name) for name in names)
    values = [list(dict.fromkeys(point.settings[field] for point in found)) for field in sets]
    assert sorted(tuple(point.settings.values()) for point in found) == sorted(itertools.product(*values))


def test_a_run_is_called_the_same_in_a_larger_grid() -> None:
    small = {point.words: point.name for point in points({"lr": "0.02", "strategy.batch": "32"})}
    large = {point.words: point.name for point in points({"lr": "0.01,0.02", "strategy.batch": "16,32"})}
    assert small.items() <= large.items()


def test_fields_that_end_alike_are_named_in_full() -> None:
    (found,) = points({"strategy.batch": "8", "schedule.scale.batch": "4"})
    assert found.name == "strategy.batch-8_schedule.scale.batch-4"
