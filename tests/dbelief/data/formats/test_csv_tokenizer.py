"""Text into numbers: the bits of Python's own float, and every wrong field with its place."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbelief.data.formats import csv_tokenizer
from dbelief.data.formats.csv_tokenizer import TEXT, Cells, read_cells
from dbelief.data.tables.missing_values import MissingValues
from dbelief.errors import DataError


def scan(text: str | bytes, roles: list[int] | None = None, delimiter: str = ",") -> Cells:
    content = text.encode() if isinstance(text, str) else text
    width = content.splitlines()[0].count(delimiter.encode()) + 1
    places = np.arange(width) if roles is None else np.array(roles)
    return read_cells(content, 0, 1, delimiter, places, [f"column {c + 1}" for c in range(len(places))], "f")


def bits(values: np.ndarray) -> list[int]:
    found: list[int] = np.ascontiguousarray(values, np.float32).view(np.uint32).ravel().tolist()
    return found


PLAIN = st.from_regex(r"[-+]?([0-9]{1,25}\.?[0-9]{0,25}|\.[0-9]{1,25})([eE][-+]?[0-9]{1,2})?", fullmatch=True)


@given(st.lists(PLAIN, min_size=1, max_size=20))
@example(["16777217", "16777219", "33554434.0000000001", "1.00000005960464477539", "1.000000059604644775390625"])
@example(["-0", "0e99", "000000000000000000000000001", "0.00000000000000000000000000000000000000000000001"])
@example(["340282346638528859811704183484516925440", "1e-45", "1.17549435e-38", "99999999999999999999e-19"])
def test_number_is_the_float32_nearest_to_pythons(words: list[str]) -> None:
    with np.errstate(over="ignore", under="ignore"):
        expected = np.array([np.float32(float(word)) for word in words])
    finite = np.isfinite(expected)
    text = ",".join(word for word, good in zip(words, finite, strict=True) if good)
    if text:
        assert bits(scan(text).numbers) == bits(expected[finite])


@given(st.lists(PLAIN, min_size=1, max_size=20))
@example(
    ["9007199254740993", "1000000000000000.0625", "1000000000000000.1875", "1.00000000000000011102230246251565404"]
)
@example(["1767225600.123456789", "0.1", "-8.692932128906250000e-01", "18446744073709551615", "18446744073709551616"])
@example(["123456789012345678e-20", "9999999999999999999e-22", "9007199254740993e22", "4503599627370496.5"])
def test_number_is_pythons_where_it_is_kept_as_float64(words: list[str]) -> None:
    """Ties, digits behind the nineteenth, powers of ten to both sides."""
    text = ",".join(word for word in words if abs(float(word)) < 3e38)
    if text:
        content, places = text.encode(), np.arange(text.count(",") + 1)
        read = read_cells(content, 0, 1, ",", places, list(map(str, places)), "f", dtype=np.float64)
        assert read.numbers.tolist() == [[float(word) for word in text.split(",")]]


def test_quotes_may_hold_delimiters_quotes_and_line_ends() -> None:
    found = scan('"a;b";1\n"say ""no""";"2"\r\n\n"two\nlines";3\n"";4', [TEXT, 0], ";")
    assert found.texts == [[b"a;b", b'say "no"', b"two\nlines", b""]]
    assert found.numbers.ravel().tolist() == [1, 2, 3, 4]
    assert found.lines.tolist() == [1, 2, 4, 6]
    assert scan('5" pipe,1', [TEXT, 0]).texts == [[b'5" pipe']]


def test_missing_numbers() -> None:
    content = b"1,,?\n NA ,2, \n"
    read = partial(read_cells, content, 0, 1, ",", np.arange(3), list("abc"), "f")
    assert np.isnan(read(MissingValues.of(["?", "NA"]), 3).numbers).tolist() == [[0, 1, 1], [1, 0, 1]]
    with pytest.raises(DataError, match=r"^f, line 1, c: '\?' is not a number"):
        read(MissingValues.of([]), 3)
    with pytest.raises(DataError, match=r"^f, line 1, b: is empty, must be a number; a target is never filled"):
        read(MissingValues.of(["?", "NA"]), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_missing_values_that_are_numbers_are_compared_as_numbers(dtype: Any) -> None:
    """As pandas does; by the compiled loops and by Python's own parser."""
    content = b'-999,-999.0, -9.99e2 ,-999.0000000000000000000000000,998,"-999",-0.1,1e2\n'
    read = partial(read_cells, content, 0, 1, ",", np.arange(8), list("abcdefgh"), "f")
    missing = MissingValues.of(["-999", "-0.1", "100"])
    assert np.isnan(read(missing, 8, dtype).numbers).tolist() == [[1, 1, 1, 1, 0, 1, 1, 1]]
    with pytest.raises(DataError, match=r"^f, line 1, a: '-999' stands for a missing value, must be a number; data"):
        read(missing, 0, dtype)


def test_fields_left_to_python_may_be_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_tokenizer, "HARD", 3)
    numbers = scan("\n".join("1e-30,2" for _ in range(10))).numbers
    assert bits(numbers) == bits(np.array([[1e-30, 2]] * 10, np.float32))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2\n3\n", "f, line 2: has 1 of 2 fields"),
        ("1,2\n3,4,5\n", "f, line 2: has more than 2 fields"),
        (
            "1,2\n3,4\n5,",
            "f, line 3, column 2: is empty, must be a number; data.missing: mean or zero fills gaps of inputs",
        ),
        (
            "1,2\n\n,4\n",
            "f, line 3, column 1: is empty, must be a number; data.missing: mean or zero fills gaps of inputs",
        ),
        ("1,2\n3,abc\n", "f, line 2, column 2: 'abc' is not a number"),
        ("1,2\n3,4 5\n", "f, line 2, column 2: '4 5' is not a number: write it without ' '"),
        ("1,2\n3,1_000\n", "f, line 2, column 2: '1_000' is not a number: write it without '_'"),
        ('1,2\n3,"1,5"\n', "f, line 2, column 2: '1,5' is not a number: decimals have a point, thousands no mark"),
        (
            '1,2\n3,"1,234,567"\n',
            "f, line 2, column 2: '1,234,567' is not a number: decimals have a point, thousands no mark",
        ),
        ("1,2\n3,5%\n", "f, line 2, column 2: '5%' is not a number: write it without '%'"),
        ("1,2\n3,0x10\n", "f, line 2, column 2: '0x10' is not a number"),
        ("1,2\n3,1e\n", "f, line 2, column 2: '1e' is not a number"),
        ("1,2\n3,-\n", "f, line 2, column 2: '-' is not a number"),
        ("1,2\n3,.\n", "f, line 2, column 2: '.' is not a number"),
        ("1,2\n3,1.2.3\n", "f, line 2, column 2: '1.2.3' is not a number"),
        ("1,2\n3,nan\n", "f, line 2, column 2: 'nan' is not a finite float32"),
        ("1,2\n3,1e39\n", "f, line 2, column 2: '1e39' is not a finite float32"),
        ("1,2\n-Inf,4\n", "f, line 2, column 1: '-Inf' is not a finite float32"),
        ('1,2\n3,"4\n5,6\n', "f, line 2, column 2: begins with a quote that is never closed"),
        ('1,2\n"3"x,4\n', "f, line 2, column 1: goes on after its closing quote"),
        ("1,2\nx,4\n5\n", "f, line 2, column 1: 'x' is not a number"),
        ("1,2\nx\n", "f, line 2: has 1 of 2 fields"),
    ],
)
def test_the_first_wrong_field_is_named(text: str, words: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(words)}$"):
        scan(text)


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused_on_one_line(content: bytes) -> None:
    said = ""
    try:
        assert np.isfinite(scan(b"1,2\n" + content).numbers).all()
    except DataError as error:
        said = str(error)
    assert not said or re.fullmatch(r"f, line \d+[:,].*", said)
