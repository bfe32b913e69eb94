"""The same value in the forms that other tools write: as the file of training, a later file, a frame, or rows."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.data import Dataset, load
from dbelief.data.tables.table_encoder import TableEncoder
from dbelief.errors import DataError
from dbelief.job import CsvData, ParquetData

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
pq = pytest.importorskip("pyarrow.parquet")


def csv(folder: Path, text: str, **fields: Any) -> Dataset:
    (folder / "t.csv").write_text(text)
    spec = {"file": "t.csv", "kind": "classes", "target": "y", "validation": 0, "test": 0, **fields}
    return load(CsvData(source="csv", **spec), folder)


def parquet(folder: Path, table: Any, **fields: Any) -> Dataset:
    pq.write_table(table, folder / "t.parquet")
    spec = {"files": "t.parquet", "kind": "classes", "target": "y", "validation": 0, "test": 0, **fields}
    return load(ParquetData(source="parquet", **spec), folder)


def encoder_of(data: Dataset) -> TableEncoder:
    assert data.form is not None
    assert data.form.encoder is not None
    return TableEncoder.restore(data.form.encoder)


def inputs(data: Any) -> list[list[float]]:
    found: list[list[float]] = np.asarray(data.inputs).tolist()
    return found


def test_a_whole_number_is_one_category_with_and_without_gaps(tmp_path: Path) -> None:
    """Pandas writes 3.0 for the numbers of a column with a gap."""
    (tmp_path / "v.csv").write_text("a,c,y\n1,3,0\n2,4,1\n")
    data = csv(
        tmp_path, "a,c,y\n1,3.0,0\n2,,1\n3,4.0,0\n4,3.0,1\n", categories=["c"], missing="mean", validation_file="v.csv"
    )
    assert data.columns == ("a", "c=", "c=3.0", "c=4.0")
    assert inputs(data.validation) == [[1, 0, 1, 0], [2, 0, 0, 1]]
    encoder = encoder_of(data)
    for values in ([3, 4], [3.0, 4.0], ["3", "4"], ["3.0", "4e0"]):
        assert encoder.encode_rows(pandas.DataFrame({"a": [1, 2], "c": values}), "w").tolist() == inputs(
            data.validation
        )
    back = encoder_of(csv(tmp_path, "a,c,y\n1,3,0\n2,4,1\n3,3,1\n", categories=["c"]))
    assert back.encode_rows([[1, "3.0"], [2, "4.0"], [3, "5.0"]], "w").tolist() == [[1, 1, 0], [2, 0, 1], [3, 0, 0]]


def test_values_that_differ_by_their_zeros_stay_apart(tmp_path: Path) -> None:
    encoder = encoder_of(csv(tmp_path, "c,y\n1,0\n01,1\n2,0\n", categories=["c"]))
    assert encoder.names == ("c=01", "c=1", "c=2")
    rows = [["1"], ["01"], ["1.0"], [2.0]]
    assert encoder.encode_rows(rows, "w").tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("texts", [("true", "false"), ("TRUE", "FALSE"), ("True", "False"), ("01", "02")])
@pytest.mark.parametrize("bytes_", [False, True])
def test_a_frame_that_pandas_has_read_from_the_file_of_training(
    texts: tuple[str, str], bytes_: bool, tmp_path: Path
) -> None:
    """Pandas makes truth values and numbers of texts that the file has otherwise."""
    one, other = texts
    data = csv(tmp_path, f"a,c,y\n1,{one},0\n2,{other},1\n3,{one},0\n", categories=["c"])
    frame = pandas.read_csv(tmp_path / "t.csv")
    if bytes_:
        frame = np.array([[b"1", one.encode()], [b"2", other.encode()], [b"3", one.encode()]])
    assert encoder_of(data).encode_rows(frame, "w").tolist() == inputs(data.train)


def test_whole_numbers_have_one_bucket(tmp_path: Path) -> None:
    encoder = encoder_of(csv(tmp_path, "c,y\n3,0\n4,1\n", hashed=["c"], buckets=1000))
    found = encoder.encode_rows([[3], [3.0], ["3"], ["3.0"], ["03"]], "w").argmax(axis=1)
    assert len({*found[:4].tolist()}) == 1
    assert found[4] != found[0]


@pytest.mark.parametrize("marker", ["-99.99", "-999.9", "-9999.99", "99.99"])
def test_decimals_are_the_nearest_numbers(marker: str, tmp_path: Path) -> None:
    values = [decimal.Decimal(marker), decimal.Decimal("1.00"), decimal.Decimal("2.10")]
    table = pyarrow.table({"a": pyarrow.array(values, pyarrow.decimal128(10, 2)), "y": [0, 1, 0]})
    data = parquet(tmp_path, table, missing="mean", missing_values=[marker])
    assert inputs(data.train) == np.array([[1.55], [1.0], [2.1]], np.float32).tolist()
    frame = pq.read_table(tmp_path / "t.parquet").to_pandas()
    assert encoder_of(data).encode_rows(frame, "w").tolist() == inputs(data.train)


def test_gaps_of_nullable_columns(tmp_path: Path) -> None:
    table = pyarrow.table({"c": ["x", None, "z"], "b": [True, None, False], "y": [0, 1, 0]})
    data = parquet(tmp_path, table, categories=["c"], missing="mean")
    frame = pq.read_table(tmp_path / "t.parquet").to_pandas().convert_dtypes()
    assert frame["c"].dtype == "string"
    assert inputs(data.train) == [[0, 1, 0, 1], [1, 0, 0, 0.5], [0, 0, 1, 0]]
    assert encoder_of(data).encode_rows(frame, "w").tolist() == inputs(data.train)


@pytest.mark.parametrize("form", ["date32", "timestamp", "text"])
def test_a_date_that_stands_for_a_missing_one(form: str, tmp_path: Path) -> None:
    days = [datetime.date(1900, 1, 1), datetime.date(1970, 1, 3), datetime.date(1970, 1, 5)]
    types = {"date32": pyarrow.date32(), "timestamp": pyarrow.timestamp("us")}
    column = [f"{day} 00:00:00" for day in days] if form == "text" else pyarrow.array(days).cast(types[form])
    more = {"dates": ["d"]} if form == "text" else {}
    data = parquet(
        tmp_path, pyarrow.table({"d": column, "y": [0, 1, 0]}), missing="mean", missing_values=["1900-01-01"], **more
    )
    assert inputs(data.train) == [[3], [2], [4]]
    frame = pandas.DataFrame({"d": pandas.to_datetime([str(day) for day in days])})
    assert encoder_of(data).encode_rows(frame, "w").tolist() == [[3], [2], [4]]
    text = "d,y\n" + "".join(f"{day} 00:00:00,{place % 2}\n" for place, day in enumerate(days))
    read = csv(tmp_path, text, dates=["d"], missing="mean", missing_values=["1900-01-01"])
    assert inputs(read.train) == [[3], [2], [4]]


def test_rows_with_names_are_read_by_them(tmp_path: Path) -> None:
    encoder = encoder_of(csv(tmp_path, "c,t,y\nu,k,0\nv,l,1\n", categories=["c", "t"]))
    wanted = [[1, 0, 1, 0]]
    for row in ({"t": "k", "c": "u"}, pandas.Series({"t": "k", "c": "u"}), ["u", "k"], {"t": "k", "more": 1, "c": "u"}):
        assert encoder.encode_rows([row], "w").tolist() == wanted
    with pytest.raises(DataError, match=r"^w: a row has no 't', must have c, t$"):
        encoder.encode_rows([{"c": "u"}], "w")


@pytest.mark.parametrize("rows", [[1, 2], 5, None, np.array([1.0, 2.0])])
def test_rows_of_another_shape_are_refused(rows: Any, tmp_path: Path) -> None:
    encoder = encoder_of(csv(tmp_path, "c,t,y\nu,k,0\nv,l,1\n", categories=["c", "t"]))
    with pytest.raises(DataError, match=r"^w: rows must be lists of 2 values: c, t$"):
        encoder.encode_rows(rows, "w")
    assert encoder.encode_rows([], "w").shape == (0, 4)


def test_a_column_of_folders_is_noted(tmp_path: Path) -> None:
    for city in ("p", "q"):
        (tmp_path / "hive" / f"city={city}").mkdir(parents=True)
        pq.write_table(pyarrow.table({"a": [1.0, 2.0], "y": [0, 1]}), tmp_path / "hive" / f"city={city}" / "0.parquet")
    data = parquet(tmp_path, pyarrow.table({"a": [1.0]}), files="hive")
    (note,) = data.notes
    assert note.endswith(
        "column 'city' is in the names of folders alone (city=q), and is no input: write it into the files to use it"
    )


def test_a_first_row_with_numbers_is_noted(tmp_path: Path) -> None:
    data = csv(tmp_path, "5.1,3.5,setosa\n4.9,3.0,setosa\n7.0,3.2,versicolor\n", target=-1)
    (note,) = data.notes
    assert "the first row is taken as names of columns, and '5.1' is a number; where it is a sample, set " in note


def test_the_row_of_a_text_that_is_no_date(tmp_path: Path) -> None:
    table = pyarrow.table({"d": [*["2026-01-01"] * 5, "x"], "y": [0, 1, 0, 1, 0, 1]})
    with pytest.raises(DataError, match=r"'d' in row 5 \(from 0\) is 'x', no date such as"):
        parquet(tmp_path, table, dates=["d"])


def test_lines_that_end_in_two_ways(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,y\r1,0\r2,1\r\n")
    with pytest.raises(DataError, match=r"lines end in CR here and in LF elsewhere: write the file with one of them$"):
        load(CsvData(source="csv", file="t.csv", kind="classes", target=("y",), validation=0, test=0), tmp_path)
