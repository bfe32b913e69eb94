"""The protocol's model: no run of it loses or doubles a push or waits forever, and each planted error is found."""

from __future__ import annotations

import re

import pytest

from .search import ABSENT, COMPLETE, FAILURES, HERE, PLANTED, Found, _read, search

needs_spin = pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}")
SMALL = {**COMPLETE, "CRASHES": 1}


@needs_spin
def test_a_run_without_failures_has_no_error() -> None:
    found = search({**COMPLETE, "CRASHES": 0}, states=1 << 20)
    assert (found.error, found.complete) == ("", True), found
    assert found.states > 50_000


@needs_spin
@pytest.mark.long
def test_every_run_ends() -> None:
    found = search({**SMALL, "FIRST": 1}, cycles=True, states=1 << 23)
    assert (found.error, found.complete) == ("", True), found
    assert found.states > 1_000_000


@needs_spin
@pytest.mark.long
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_error_is_found(planted: str) -> None:
    assert search(SMALL, planted=planted).error, PLANTED[planted]


def test_every_planted_error_is_in_the_model() -> None:
    text = "".join(path.read_text() for path in sorted(HERE.glob("*.pml")))
    assert all(f"def PLANT_{name}\n" in text for name in PLANTED)


def test_the_divided_search_has_a_part_for_every_failure() -> None:
    text = "".join(path.read_text() for path in HERE.glob("*.pml"))
    assert sorted(re.findall(r"MAY_FAIL\(([^)]+)\) &&", text)) == ["4 + p", "8 + w", "p"]
    assert list(FAILURES) == sorted([*range(4), *(4 + p for p in range(4)), *(8 + w for w in range(2))])


def test_a_search_that_was_stopped_is_not_complete() -> None:
    assert _read(PRINTED) == Found("assertion violated (a>0)", False, 4505411, 81, 352583680, 4.09)
    whole = PRINTED.replace("Warning: Search not completed", "").replace("pan:1: ", "")
    assert _read(whole) == Found("", True, 4505411, 81, 352583680, 4.09)
    with pytest.raises(RuntimeError, match="has printed no"):
        _read("")


PRINTED = """pan:1: assertion violated (a>0) (at depth 39)
Warning: Search not completed
State-vector 172 byte, depth reached 81, errors: 1
  4505411 states, stored
  128.000\tmemory used for hash table (-w24)
  336.25\ttotal actual memory usage
pan: elapsed time 4.09 seconds
"""


def test_the_comments_name_code_that_exists() -> None:
    """Classes with methods, and functions of modules, as in `Migration.commit` and `persistence.restore`."""
    root = HERE.parents[1]
    files = [path for folder in ("ps_server", "coordinator", "dbelief") for path in (root / folder).rglob("*.py")]
    named = set(re.findall(r"\b([A-Za-z_]+)\.([a-z_]+)\b(?! =)", " ".join(_comments())))
    sources = {path: path.read_text() for path in files}
    for owner, name in sorted(one for one in named if one[1] != "pml"):
        holds = [text for path, text in sources.items() if f"class {owner}" in text or path.stem == owner]
        assert any(re.search(rf"def {name}\b|^    {name}\b", text, re.MULTILINE) for text in holds), f"{owner}.{name}"
    assert len(named) > 20


def _comments() -> list[str]:
    return [text for path in HERE.glob("*.pml") for text in re.findall(r"/\*(.*?)\*/", path.read_text(), re.DOTALL)]
