"""Tables with gaps, categories and dates, against scikit-learn's pipeline."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dbelief.core.sample_form import SampleForm
from dbelief.data import load
from dbelief.data.new_samples import read_samples
from dbelief.data.tables.table_encoder import EncodedColumn, TableEncoder
from dbelief.errors import DataError
from dbelief.job import CsvData

COLOURS = ["red", "green", "blue", "", "?"]


def rows(seed: int, count: int) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    table = []
    for number in range(count):
        age = "" if rng.random() < 0.1 else f"{rng.normal(40, 10):.3f}"
        income = "?" if rng.random() < 0.1 else f"{rng.lognormal(3):.2f}"
        day = f"20{rng.integers(10, 26):02}-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}"
        table.append([age, COLOURS[rng.integers(5)], day, income, f"user-{rng.integers(50)}", "yn"[number % 2]])
    return table


def write(path: Path, table: list[list[Any]], header: bool = True) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        if header:
            writer.writerow(["age", "colour", "day", "income", "user", "buys"])
        writer.writerows(table)
    return path


def spec(**fields: Any) -> CsvData:
    own: dict[str, Any] = {
        "source": "csv",
        "file": "table.csv",
        "kind": "classes",
        "target": "buys",
        "missing_values": ["?"],
    }
    own |= {"categories": ["colour"], "dates": ["day"], "hashed": ["user"], "buckets": 8, "missing": "mean"}
    return CsvData(**{**own, **fields})


@pytest.mark.parametrize("missing", ["mean", "zero"])
def test_inputs_are_those_of_scikit_learn(missing: str, tmp_path: Path) -> None:
    table = rows(0, 300)
    write(tmp_path / "table.csv", table)
    data = load(spec(missing=missing, standardize=True, ignore=["user"], hashed=[]), tmp_path)
    assert data.train is not None
    assert data.test is not None
    assert data.columns == ("age", "colour=", "colour=blue", "colour=green", "colour=red", "day", "income")
    parsed = {tuple(row[:4]): row for row in table}
    assert len(parsed) == len(table), "rows are told apart by their inputs"
    # The split is unknown here: each row is found by its inputs, encoded by an encoder that is fitted to all of them.
    numbers = np.array([[float(x) if x not in ("", "?") else np.nan for x in (row[0], row[3])] for row in table])
    days = np.array([np.datetime64(row[2]).astype("datetime64[D]").astype(float) for row in table])[:, None]
    colours = np.array([[row[1].replace("?", "")] for row in table])
    fill: dict[str, Any] = {"strategy": "mean"} if missing == "mean" else {"strategy": "constant", "fill_value": 0}
    whole = load(spec(missing=missing, standardize=True, ignore=["user"], hashed=[], validation=0, test=0), tmp_path)
    assert whole.train is not None
    oracle = ColumnTransformer(
        [
            ("age", make_pipeline(SimpleImputer(**fill), StandardScaler()), [0]),
            ("colour", OneHotEncoder(), [3]),
            ("day", StandardScaler(), [2]),
            ("income", make_pipeline(SimpleImputer(**fill), StandardScaler()), [1]),
        ],
        sparse_threshold=0,
    )
    objects = np.hstack([numbers.astype(object), days.astype(object), colours])
    np.testing.assert_allclose(whole.train.inputs, oracle.fit_transform(objects).astype(float), atol=2e-6)


def test_only_training_rows_count(tmp_path: Path) -> None:
    """What the other files hold changes nothing of it, and an unknown category is all 0."""
    write(tmp_path / "table.csv", rows(1, 60))
    other = rows(2, 20)
    other[0][1] = "violet"
    other[0][0] = "1000000"
    write(tmp_path / "test.csv", other)
    small = load(spec(test_file="test.csv", standardize=True), tmp_path)
    alone = load(spec(test=0, standardize=True), tmp_path)
    assert small.encoder == alone.encoder
    assert small.test is not None
    assert not small.test.inputs[0, 1:5].any()


def test_new_rows_are_encoded_alike(tmp_path: Path) -> None:
    """From a file with other columns and another order, and as raw values."""
    table = rows(3, 80)
    write(tmp_path / "table.csv", table)
    data = load(spec(standardize=True, validation=0, test=0), tmp_path)
    assert data.train is not None
    assert data.form is not None
    form = SampleForm.parse(data.form.text)
    assert form == SampleForm.parse(form.text)
    with open(tmp_path / "new.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "more", "income", "day", "colour", "age"])
        writer.writerows([row[4], "x", row[3], row[2], row[1], row[0]] for row in table)
    np.testing.assert_array_equal(read_samples(tmp_path / "new.csv", spec(), form), data.train.inputs)
    assert form.encoder is not None
    raw = [[None if value in ("", "?") else value for value in row[:5]] for row in table]
    raw[0][0] = math.nan if raw[0][0] is None else float(raw[0][0])
    np.testing.assert_array_equal(TableEncoder.restore(form.encoder).encode_rows(raw, "inputs"), data.train.inputs)


def test_without_a_header_columns_are_numbers(tmp_path: Path) -> None:
    write(tmp_path / "table.csv", rows(4, 40), header=False)
    fields = {"header": False, "target": -1, "categories": [2], "dates": [3], "hashed": [5]}
    data = load(spec(**fields), tmp_path)
    assert data.columns is not None
    assert data.columns[:2] == ("column 1", "column 2=")


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=30), st.integers(2, 9))
def test_categories_and_buckets(values: list[str], buckets: int) -> None:
    known = tuple(sorted({*values} - {"d"}))
    category = EncodedColumn("x", "category", values=known)
    out = np.empty((len(values), category.width), np.float32)
    category.encode(values, out, "f")
    for row, value in enumerate(values):
        assert out[row].sum() == (value in known)
        assert value not in known or out[row, known.index(value)] == 1
    hashed = EncodedColumn("x", "hashed", buckets=buckets)
    out = np.empty((len(values), buckets), np.float32)
    hashed.encode(values, out, "f")
    assert (out.sum(axis=1) == 1).all()
    assert {value: row.argmax() for value, row in zip(values, out, strict=True)} == {
        value: row.argmax() for value, row in zip(values[::-1], out[::-1], strict=True)
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"vocabulary": 2}, r"'colour' has 4 values in the training rows, and data\.vocabulary allows 2; raise"),
        ({"ignore": ["day"]}, r"column 3 \('day'\) is named twice by target, ignore, categories, hashed and dates"),
    ],
)
def test_bad_tables_are_refused(fields: dict[str, Any], why: str, tmp_path: Path) -> None:
    write(tmp_path / "table.csv", rows(5, 40))
    with pytest.raises(DataError, match=why):
        load(spec(**fields), tmp_path)


def test_a_column_without_a_value_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "table.csv", [["", *row[1:]] for row in rows(6, 30)])
    with pytest.raises(DataError, match=r"'age' has no value in the training rows; list it in data\.ignore$"):
        load(spec(), tmp_path)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([1.0, "red"], r"^inputs: row 1 has 2 values, must have 5: age, colour, day, income, user$"),
        (["old", "red", "2020-01-01", 1, "u"], r"^inputs: 'age' in row 1 is 'old', no number$"),
        ([1, "red", "1.2.2020", 1, "u"], r"^inputs: 'day' in row 1 is '1\.2\.2020', no date such as 2026-02-28"),
    ],
)
def test_bad_rows_are_refused(row: list[Any], why: str, tmp_path: Path) -> None:
    write(tmp_path / "table.csv", rows(7, 30))
    encoder = load(spec(), tmp_path).encoder
    assert encoder is not None
    with pytest.raises(DataError, match=why):
        TableEncoder.restore(json.loads(json.dumps(encoder))).encode_rows([row], "inputs")
