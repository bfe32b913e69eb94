"""Types of Parquet columns: each is read as Python reads it, streamed and in memory, or refused in a line."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbelief.core.sample_form import SampleForm
from dbelief.data import load
from dbelief.data.new_samples import read_samples
from dbelief.errors import DataError
from dbelief.job import ParquetData

EPOCH = dt.datetime(1970, 1, 1)
WHEN = [
    dt.datetime(2026, 1, 1, 12),
    dt.datetime(9999, 12, 31),
    dt.datetime(1, 1, 1),
    None,
    dt.datetime(1969, 12, 31, 23),
    dt.datetime(1500, 2, 28, 6),
]
DAYS = [0.0 if one is None else (one - EPOCH) / dt.timedelta(days=1) for one in WHEN]
NAN = float("nan")


def read(folder: Path, column: Any, written: dict[str, Any] | None = None, **fields: Any) -> tuple[Any, list[Any]]:
    """Names and values of the inputs; they are the same streamed, in memory and as new samples."""
    table = column if isinstance(column, pa.Table) else pa.table({"a": column, "y": [0, 1] * 3})
    pq.write_table(table, folder / "t.parquet", row_group_size=3, **(written or {}))
    own = {"source": "parquet", "files": "t.parquet", "kind": "classes", "target": "y", "validation": 0, "test": 0}
    found = []
    for streamed in (False, True):
        spec = ParquetData.model_validate(own | fields | {"streamed": streamed})
        data = load(spec, folder)
        assert data.train is not None
        assert data.form is not None
        found += [data.train.inputs, read_samples(folder / "t.parquet", spec, SampleForm.parse(data.form.text))]
    assert all(np.array_equal(one, found[0]) for one in found)
    return data.columns, found[0].tolist() if len(data.columns or ()) > 1 else found[0].ravel().tolist()


GOOD: dict[str, tuple[Any, list[float], dict[str, Any]]] = {
    **{f"timestamp {unit}": (pa.array(WHEN, pa.timestamp(unit)), DAYS, {}) for unit in ("s", "ms", "us")},
    "timestamp of a zone": (pa.array(WHEN, pa.timestamp("us", tz="America/New_York")), DAYS, {}),
    "timestamp ns": (pa.array([0, 864 * 10**11, -432 * 10**11] * 2, pa.timestamp("ns")), [0, 1, -0.5] * 2, {}),
    "timestamp ms far beyond": (pa.array([0, 2**55] * 3, pa.timestamp("ms")), [0, 2**55 / 86_400_000] * 3, {}),
    "date32 of infinity": (pa.array([0, 2**31 - 1] * 3, pa.int32()).cast(pa.date32()), [0, 2**31 - 1] * 3, {}),
    "date64": (pa.array([dt.date(1, 1, 1), None] * 3, pa.date64()), [-719162, 0] * 3, {}),
    "decimal128": (pa.array([Decimal("1.25"), None] * 3, pa.decimal128(38, 2)), [1.25, 0] * 3, {}),
    "decimal256": (pa.array([Decimal(10**30), Decimal(2)] * 3, pa.decimal256(76, 2)), [1e30, 2] * 3, {}),
    "uint64": (pa.array([2**64 - 1, None, 0] * 2, pa.uint64()), [2.0**64, 0, 0] * 2, {}),
    "int64": (pa.array([2**62, -(2**62)] * 3), [2.0**62, -(2.0**62)] * 3, {}),
    "float16": (pa.array(np.array([1, NAN] * 3, np.float16)), [1, 0] * 3, {}),
    "float16 with nulls": (pa.array([np.float16(1), None] * 3, pa.float16()), [1, 0] * 3, {}),
    "truth": (pa.array([True, None, False] * 2), [1, 0, 0] * 2, {}),
    "dictionary of numbers": (pa.array([5, 7, None] * 2).dictionary_encode(), [5, 7, 0] * 2, {}),
    "a missing number": (pa.array([-999, 2, 3] * 2), [0, 2, 3] * 2, {"missing_values": ["-999.0"]}),
    "a missing float32": (pa.array([-999.9, 2, 3] * 2, pa.float32()), [0, 2, 3] * 2, {"missing_values": ["-999.9"]}),
}


@pytest.mark.parametrize("name", GOOD)
def test_values_are_those_of_python(tmp_path: Path, name: str) -> None:
    column, expected, fields = GOOD[name]
    _, found = read(tmp_path, column, missing="zero", **fields)
    assert found == np.array(expected).astype(np.float32).tolist()


def test_dates_in_96_bits_of_any_year(tmp_path: Path) -> None:
    written = {"use_deprecated_int96_timestamps": True}
    _, found = read(tmp_path, pa.array(WHEN, pa.timestamp("us")), written, missing="zero")
    assert found == np.array(DAYS).astype(np.float32).tolist()


TEXTS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large_string": pa.dictionary(pa.int32(), pa.large_string()),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_any_type_are_categories(tmp_path: Path, name: str) -> None:
    """NA is a text there: only null is missing, as pandas reads it."""
    column = pa.array(["x", None, "NA"] * 2).cast(TEXTS[name])
    names, found = read(tmp_path, column, categories="a", missing="zero")
    assert names == ("a=", "a=NA", "a=x")
    assert found == [[0, 0, 1], [1, 0, 0], [0, 1, 0]] * 2
    with pytest.raises(DataError, match=r"t\.parquet, row group 0, column 'a', row 1 \(from 0\): is missing; data\.mi"):
        read(tmp_path, column, categories="a")


LISTS = [
    pa.list_(pa.float64()),
    pa.large_list(pa.float32()),
    pa.list_(pa.int64()),
    pa.list_(pa.float16()),
    pa.list_(pa.uint8()),
    pa.list_(pa.int64(), 2),
]


@pytest.mark.parametrize("own", LISTS, ids=str)
def test_lists_of_one_length_are_so_many_inputs(tmp_path: Path, own: Any) -> None:
    lists = pa.array([[row, row + 1] for row in range(6)], own)
    assert read(tmp_path, lists) == (("a[0]", "a[1]"), [[row, row + 1] for row in range(6)])
    both = pa.table({"b": range(6), "a": lists, "y": [0, 1] * 3})
    names, found = read(tmp_path, both)
    assert (names, found[2]) == (("b", "a[0]", "a[1]"), [2, 2, 3])


TWO = [1.0, 2.0]
BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another length": (pa.array([TWO] * 4 + [[1.0]] + [TWO]), {}, "row group 1, column 'a', row 1 (from 0): has 1 num"),
    "a longer one": (pa.array([TWO] * 5 + [[1.0, 2, 3]]), {}, "row group 1, column 'a', row 2 (from 0): has 3 numbers"),
    "no list": (pa.array([TWO] * 4 + [None] + [TWO]), {}, "row group 1, column 'a', row 1 (from 0): is missing"),
    "no list of fixed size": (
        pa.array([TWO] * 4 + [None] + [TWO], pa.list_(pa.float64(), 2)),
        {},
        "row group 1, column 'a', row 1 (from 0): is missing",
    ),
    "no number": (
        pa.array([TWO] * 4 + [[1.0, None]] + [TWO]),
        {},
        "row group 1, column 'a', row 1 (from 0): a number of the list is missing",
    ),
    "NaN in a list": (pa.array([TWO] * 5 + [[NAN, 1]]), {}, "row group 1, column 'a', row 2 (from 0): holds NaN or"),
    "empty lists": (pa.array([[]] * 6, pa.list_(pa.float64())), {}, "column 'a': its first list is empty or missing"),
    "lists of lists": (pa.array([[[1]]] * 6), {}, "column 'a' is list<element: list<element: int64>>, which cannot"),
    "lists of texts": (pa.array([["x"]] * 6), {}, "column 'a' is list<element: string>, which cannot be an input"),
    "structures": (pa.array([{"b": 1}] * 6), {}, "column 'a' is struct<b: int64>, which cannot be an input; list it"),
    "times": (pa.array([1] * 6, pa.time32("ms")), {}, "column 'a' is time32[ms], which cannot be an input"),
    "durations": (pa.array([1] * 6, pa.duration("us")), {}, "column 'a' is duration[us], which cannot be an input"),
    "bytes": (pa.array([b"x"] * 6), {}, "column 'a' is binary, which cannot be an input"),
    "nothing": (pa.nulls(6), {}, "column 'a' is null, which cannot be an input"),
    "a missing number": (pa.array([1.0, NAN] * 3), {"standardize": True}, "column 'a', row 1 (from 0): is missing"),
    "a missing value": (pa.array([1, -9] * 3), {"missing_values": ["-9"]}, "column 'a', row 1 (from 0): is missing"),
    "infinity": (pa.array([1.0, 1e39] * 3), {"standardize": True}, "column 'a', row 1 (from 0): is infinite, or too"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_input_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    column, fields, why = BAD[name]
    with pytest.raises(DataError) as caught:
        read(tmp_path, column, **fields)
    assert why in str(caught.value)


TARGETS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "null": (pa.array([1.0, 2, 3, 4, None, 5]), {"kind": "regression"}, "row 1 (from 0): a target is missing"),
    "a missing value": (
        pa.array([1, 2, 3, 4, -9, 5]),
        {"kind": "regression", "missing_values": ["-9"]},
        "row 1 (from 0): a target is missing",
    ),
    "NaN": (pa.array([1.0, 2, 3, 4, NAN, 5]), {"kind": "regression"}, "row 1 (from 0): a target is missing"),
    "null as class": (pa.array([1, 0, 1, 0, None, 1]), {}, "row 1 (from 0): a class is missing"),
    "NaN as class": (pa.array([1.0, 0, 1, 0, NAN, 1]), {}, "row 1 (from 0): nan stands for a missing value"),
    "a part of one": (pa.array([1.0, 0, 1, 0, 0.5, 1]), {}, "row 1 (from 0): class 0.5 is no whole number"),
}


@pytest.mark.parametrize("which", ["files", "validation_files", "test_files"])
@pytest.mark.parametrize("name", TARGETS)
def test_a_target_that_is_missing_is_refused_when_the_files_are_opened(tmp_path: Path, name: str, which: str) -> None:
    """Also in files that are read later, unit by unit."""
    target, fields, why = TARGETS[name]
    pq.write_table(pa.table({"a": range(6), "y": target}), tmp_path / "bad.parquet", row_group_size=3)
    whole = pa.concat_arrays([target[:3], target[:3]])
    pq.write_table(pa.table({"a": range(6), "y": whole}), tmp_path / "good.parquet", row_group_size=3)
    own = {"source": "parquet", "kind": "classes", "target": "y", "validation": 0, "test": 0, "files": "good.parquet"}
    spec = ParquetData.model_validate(own | fields | {which: "bad.parquet"})
    with pytest.raises(DataError) as caught:
        load(spec, tmp_path)
    assert f"bad.parquet, row group 1, column 'y', {why}" in str(caught.value)


def test_classes_of_any_type(tmp_path: Path) -> None:
    for classes, names in (
        (pa.array([2**53, 2**53 + 1] * 3), ("9007199254740992", "9007199254740993")),
        (pa.array([Decimal("1.00"), Decimal("0.00")] * 3), None),
        (pa.array([True, False] * 3), ("False", "True")),
        (pa.array(np.array([1, 0] * 3, np.float16)), None),
        (pa.array(["x", "z"] * 3).dictionary_encode(), ("x", "z")),
    ):
        pq.write_table(pa.table({"a": range(6), "y": classes}), tmp_path / "t.parquet", row_group_size=3)
        own = {"source": "parquet", "files": "t.parquet", "kind": "classes", "target": "y", "validation": 0, "test": 0}
        data = load(ParquetData.model_validate(own), tmp_path)
        assert (data.names, data.classes) == (names, 2)
