"""Streams of Vowpal Wabbit's text: rows of the format's documentation, both parsers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.data.bags import read_vw
from dbelief.data.bags.vw import _scanned, parse_rows
from dbelief.errors import DataError
from dbelief.sparse.text_keys import text_keys

DOCUMENTED = """\
1 1.0 |Metric:3.28 height:1.5 length:2.0 |Says black with white stripes |Other NumberOfLegs:4.0 HasStripes
1 1.0 zebra|Metric:3.28 height:1.5 length:2.0 |Says black with white stripes |Other NumberOfLegs:4.0 HasStripes

0 | price:.23 sqft:.25 age:.05 2006
1 2 'second_house | price:.18 sqft:.15 age:.35 1976
0 1 | price:.53 sqft:.32 age:.87 1924\r
-1 |Says |Says black
"""


def key(text: str) -> int:
    return int(text_keys([text])[0])


def written(folder: Path, text: str) -> Path:
    path = folder / "t.vw"
    path.write_bytes(text.encode())
    return path


def test_rows_of_the_documentation(tmp_path: Path) -> None:
    (batch,) = read_vw(written(tmp_path, DOCUMENTED), ["Says", "Metric", ""])
    assert batch.labels.tolist() == [1, 1, 0, 1, 0, -1]
    assert batch.weights.tolist() == [1, 1, 1, 2, 1, 1]
    metric, says, unnamed = (batch.bags[name] for name in ("Metric", "Says", ""))
    assert metric.keys.tolist() == [key("Metric^height"), key("Metric^length")] * 2
    np.testing.assert_allclose(metric.values, [3.28 * 1.5, 3.28 * 2] * 2, rtol=1e-7)
    assert says.keys.tolist() == [key(f"Says^{word}") for word in ("black", "with", "white", "stripes")] * 2 + [
        key("Says^black")
    ]
    assert says.offsets.tolist() == [0, 4, 8, 8, 8, 8]
    assert unnamed.keys[:4].tolist() == [key(word) for word in ("price", "sqft", "age", "2006")]
    values = [0.23, 0.25, 0.05, 1, 0.18, 0.15, 0.35, 1, 0.53, 0.32, 0.87, 1]
    assert unnamed.values.tolist() == np.array(values, np.float32).tolist()
    (whole,) = read_vw(tmp_path / "t.vw")
    assert len(whole.bags["features"].keys) == 2 * 8 + 3 * 4 + 1


NUMBER = st.one_of(st.integers(0, 99).map(str), st.floats(0, 9, width=16).map(repr))
WORD = st.text("abÄ-'_", min_size=1, max_size=4)
FEATURES = st.lists(st.tuples(WORD, st.one_of(st.just(""), NUMBER.map(":{}".format))), max_size=4)
SPACES = st.lists(st.tuples(st.sampled_from(["", "a", "user", "user:0.5"]), FEATURES), min_size=1, max_size=4)
BARE = ["", " ", "'tag", "x"]
"""Heads without a label."""
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["0 ", "1 ", "-1 ", "1 2.5 ", "1 'tag", "0 .5 '", "1 3 x", *BARE]),
        SPACES,
        st.sampled_from(["\n", "\r\n", "\n\n"]),
    ),
    min_size=1,
    max_size=5,
)


@given(ROWS)
def test_compiled_loops_give_what_pythons_parsers_give(rows: list[Any]) -> None:
    content = "".join(
        head + " ".join(f"|{name} " + "\t".join(f"{word}{value}" for word, value in own) for name, own in spaces) + end
        for head, spaces, end in rows
    ).encode()
    labelled = not any(head in BARE for head, *_ in rows)
    expected, weights = parse_rows(content, 1, "t", labelled)
    assert expected.labels.tolist() == [0 if head in BARE else float(head.split()[0]) for head, *_ in rows]
    own = [(name.partition(":")[0], word) for _, spaces, _ in rows for name, listed in spaces for word, _ in listed]
    assert expected.keys.tolist() == [key(f"{name}^{word}" if name else word) for name, word in own]
    assert expected.fields.tolist() == [key(name) for name, _ in own]
    assert weights.tolist() == [{"1 2.5 ": 2.5, "0 .5 '": 0.5, "1 3 x": 3}.get(head, 1) for head, *_ in rows]
    if (found := _scanned(content, labelled)) is not None:
        for one, other in zip((*found[0], found[1]), (*expected, weights), strict=True):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)


def test_plain_text_is_read_by_compiled_loops() -> None:
    assert _scanned(DOCUMENTED.encode()) is not None
    assert _scanned(b"|user a\n'tag |user b\n1 |user c\n", labelled=False) is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 a b", "has no |, behind which features are"),
        ("|a b", "has no label before |"),
        ("1|a b", "has no label before |: '1' is a tag, as no blank is between it and |"),
        ("'tag |a b", "has no label before |"),
        ("yes |a b", "label: 'yes' is not a number"),
        ("nan |a b", "label: 'nan' is not a finite float32"),
        ("1 x |a b", "weight: 'x' is not a number"),
        ("1 -1 |a b", "weight: '-1' is below 0"),
        ("1 1 0.5 |a b", "'0.5' is the third word before |, where label and weight are read"),
        ("1 |a b:", "value of 'b:': '' is not a number"),
        ("1 |a b:c:1", "value of 'b:c:1': 'c:1' is not a number"),
        ("1 |a b:1_0", "value of 'b:1_0': '1_0' is not a number"),
        ("1 |a b:inf", "value of 'b:inf': 'inf' is not a finite float32"),
        ("1 |a:1e30 b:1e30", "value of 'b:1e30': times the namespace's scale it is not a finite float32"),
        ("1 |a :1", "':1' has no feature before its colon"),
        ("1 |:2 b", "':2' behind | is a scale, and no namespace is named before it"),
        ("1 |a:x b", "scale of namespace 'a': 'x' is not a number"),
    ],
)
def test_a_line_that_violates_the_format_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"1 |a b\n\n{line}\n")
    with pytest.raises(DataError) as refused:
        list(read_vw(path))
    assert str(refused.value) == f"{path}, line 3: {message}"


def test_no_namespaces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^read_vw: namespaces is empty; None reads all$"):
        read_vw(written(tmp_path, DOCUMENTED), [])
