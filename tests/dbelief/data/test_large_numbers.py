"""Numbers whose differences are small beside themselves: standardised they are what exact arithmetic gives."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.sample_form import SampleForm
from dbelief.data import Samples, load
from dbelief.data.new_samples import read_samples
from dbelief.data.tables.table_encoder import TableEncoder
from dbelief.data.tables.table_statistics import fit
from dbelief.job import CsvData, ParquetData
from dbelief.training.job_check import _rounded_inputs

TIMES = 1_767_225_600 + 37 * np.arange(200)
COLUMNS = {
    "Unix times": TIMES,
    "10^15": 10**15 + np.arange(200) ** 2 % 97,
    "10^15 with a mean between two float64": 10**15 + np.arange(200) % 7,
    "10^9 with decimals": 10**9 + np.arange(200) / 8,
    "a constant": np.full(200, 0.1),
    "a constant of 10^15": np.full(200, 1e15 / 3),
    "small ones": np.arange(200) / 1000,
}


def exact(column: np.ndarray) -> np.ndarray:
    """(x - mean) / deviation in rational arithmetic, of which one step rounds."""
    numbers = [Fraction(float(x)) for x in column]
    mean = sum(numbers, Fraction(0)) / len(numbers)
    variance = sum(((x - mean) ** 2 for x in numbers), Fraction(0)) / len(numbers)
    deviation = float(variance) ** 0.5 or 1.0
    return np.array([float(x - mean) / deviation for x in numbers])


def inputs(split: Samples | None) -> np.ndarray:
    assert split is not None
    return np.asarray(split.inputs)


FIELDS: dict[str, Any] = {"kind": "classes", "target": "y", "standardize": True, "validation": 0, "test": 0}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=list(COLUMNS))
def test_of_csv_and_of_new_samples(tmp_path: Path, column: np.ndarray) -> None:
    rows = [f"{x!r},{row % 2}" for row, x in enumerate(column.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows]))
    spec = CsvData.model_validate(FIELDS | {"source": "csv", "file": "t.csv", "test_file": "t.csv"})
    data = load(spec, tmp_path)
    np.testing.assert_allclose(inputs(data.train)[:, 0], exact(column), atol=1e-6)
    assert np.array_equal(inputs(data.test), inputs(data.train))
    assert data.form is not None
    form = SampleForm.parse(data.form.text)  # as a model file has it
    assert np.array_equal(read_samples(tmp_path / "t.csv", spec, form), inputs(data.train))
    assert form.encoder is not None
    encoder = TableEncoder.restore(form.encoder)
    for rows_of in (column[:, None], [[x] for x in column.tolist()], [[repr(x)] for x in column.tolist()]):
        assert np.array_equal(encoder.encode_rows(rows_of, "f"), inputs(data.train))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("column", COLUMNS.values(), ids=list(COLUMNS))
def test_of_parquet_and_of_new_samples(tmp_path: Path, column: np.ndarray, streamed: bool) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = pa.array([[x, 1.0] for x in column.tolist()], pa.list_(pa.float64()))
    table = pa.table({"a": column, "l": lists, "y": np.arange(200) % 2})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=33)
    spec = ParquetData.model_validate(FIELDS | {"source": "parquet", "files": "t.parquet", "streamed": streamed})
    data = load(spec, tmp_path)
    expected = np.stack([exact(column), exact(column), np.zeros(200)], axis=1)
    np.testing.assert_allclose(inputs(data.train), expected, atol=1e-6)
    assert data.form is not None
    form = SampleForm.parse(data.form.text)
    assert np.array_equal(read_samples(tmp_path / "t.parquet", spec, form), inputs(data.train))


@pytest.mark.parametrize("missing", ["mean", "zero"])
def test_what_fills_a_gap_counts(missing: str) -> None:
    column = np.where(np.arange(40) % 4 == 3, np.nan, 10**15 + np.arange(40.0) % 7)
    fields = CsvData.model_validate(FIELDS | {"source": "csv", "file": "t.csv", "missing": missing})
    encoder = fit(fields, ["a"], ["number"], [column], np.arange(40), "f")
    present = [Fraction(x) for x in column[~np.isnan(column)].tolist()]
    mean = sum(present, Fraction(0)) / len(present)
    filled = [Fraction(x) if x == x else (mean if missing == "mean" else Fraction(0)) for x in column.tolist()]
    middle = sum(filled, Fraction(0)) / 40
    deviation = float(sum(((x - middle) ** 2 for x in filled), Fraction(0)) / 40) ** 0.5
    wanted = [float(x - middle) / deviation for x in filled]
    np.testing.assert_allclose(encoder.encode([column], "f")[:, 0], wanted, atol=1e-6)


@given(st.lists(st.floats(-1e15, 1e15), min_size=2, max_size=30), st.sampled_from([0.0, 1e9, 1e15]), st.integers(1, 9))
def test_statistics_are_exact_however_rows_are_cut(values: list[float], offset: float, cut: int) -> None:
    from dbelief.data.tables.table_statistics import ColumnStatistics

    column = np.array(values) + offset
    fields = CsvData.model_validate(FIELDS | {"source": "csv", "file": "t.csv"})
    statistics = ColumnStatistics(fields, "a", "number")
    for first in range(0, len(column), cut):
        statistics.add(column[first : first + cut], "f")
    encoded = statistics.encoded("f")
    numbers = [Fraction(x) for x in column.tolist()]
    mean = sum(numbers, Fraction(0)) / len(numbers)
    spread = float(sum(((x - mean) ** 2 for x in numbers), Fraction(0)) / len(numbers)) ** 0.5
    if spread:
        assert abs(float(Fraction(encoded.centre) + Fraction(encoded.remainder) - mean)) <= 1e-12 * spread
        assert encoded.factor == pytest.approx(1 / spread, rel=1e-9)
    else:
        assert encoded.factor == 1


def test_a_note_names_inputs_that_float32_rounds() -> None:
    largest = np.array([2**24, 2**24 + 2, 1.0, 1e30], np.float32)
    (note,) = _rounded_inputs(largest, ("a", "b", "c", "d"))
    assert note.startswith(
        "note: 'b', 'd', up to 1e+30: whole numbers above 2^24 = 16,777,216 lose digits as float32; "
    )
    assert _rounded_inputs(largest[:1], None) == []
    (note,) = _rounded_inputs(np.full(9, 1e9), None)
    assert note.startswith("note: input 1, input 2, input 3, input 4, input 5 and 4 more, up to 1e+09")
