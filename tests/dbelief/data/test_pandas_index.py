"""The index that pandas writes beside the columns of a frame is never an input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.sample_form import SampleForm
from dbelief.data import Dataset, load
from dbelief.data.new_samples import read_samples
from dbelief.data.tables.pandas_index import leading_index, parquet_index
from dbelief.errors import DataError
from dbelief.job import CsvData, ParquetData

ROWS = 12


def csv_spec(**fields: Any) -> CsvData:
    own = {"source": "csv", "file": "t.csv", "kind": "classes", "target": "y", "validation": 0, "test": 0}
    return CsvData.model_validate(own | fields)


def parquet_spec(**fields: Any) -> ParquetData:
    own = {"source": "parquet", "files": "t.parquet", "kind": "classes", "target": "y", "validation": 0, "test": 0}
    return ParquetData.model_validate(own | fields)


@pytest.mark.parametrize(
    ("header", "index"),
    [
        (["", "a"], (0,)),
        (["", "", "a"], (0, 1)),
        (["Unnamed: 0", "a"], (0,)),
        (["", "Unnamed: 0", "Unnamed: 0.1", "a"], (0, 1, 2)),
        (["Unnamed: 0_level_0", "a"], (0,)),
        (["a", ""], ()),
        (["a", "Unnamed: 1"], ()),
        (["Unnamed", "a"], ()),
        (["index", "a"], ()),
    ],
)
def test_first_columns_without_a_name(header: list[str], index: tuple[int, ...]) -> None:
    assert leading_index(header) == index


def test_the_index_is_what_the_metadata_says_or_the_name() -> None:
    names = ["a", "id", "__index_level_0__"]
    ranges = {"kind": "range", "name": None, "start": 0, "stop": 3, "step": 1}
    for said, index in (
        (["id"], ["id", "__index_level_0__"]),
        ([ranges], ["__index_level_0__"]),
        ([], ["__index_level_0__"]),
    ):
        assert parquet_index(names, {b"pandas": json.dumps({"index_columns": said}).encode()}) == index
    for metadata in (None, {}, {b"pandas": b"junk"}, {b"pandas": b"[]"}, {b"pandas": b"{}"}):
        assert parquet_index(names, metadata) == ["__index_level_0__"]


@pytest.mark.parametrize("head", ["", "Unnamed: 0", ",Unnamed: 0"])
def test_the_index_of_csv_is_left_out_and_said(tmp_path: Path, head: str) -> None:
    """In the training, in files of other sets and of new samples that have it or not."""
    more = head.count(",")
    write(tmp_path / "t.csv", head, more + 1)
    write(tmp_path / "test.csv", None, 0)
    data = load(csv_spec(test_file="test.csv"), tmp_path)
    assert data.columns == ("a", "b")
    (note,) = data.notes
    assert note.startswith(f"{tmp_path / 't.csv'}: column 1 (")
    assert data.train is not None
    assert data.test is not None
    assert np.array_equal(data.train.inputs, data.test.inputs)
    turned = load(csv_spec(file="test.csv", test_file="t.csv"), tmp_path)
    assert turned.test is not None
    assert np.array_equal(turned.test.inputs, data.train.inputs)
    assert turned.notes == ()
    form = data.form
    assert form is not None
    for name in ("t.csv", "test.csv"):
        assert np.array_equal(read_samples(tmp_path / name, csv_spec(), form), data.train.inputs)


def write(path: Path, head: str | None, columns: int) -> None:
    names = "a,b,y" if head is None else f"{head},a,b,y"
    rows = [",".join([*[str(row)] * columns, f"{row % 5},{row % 3},{row % 2}"]) for row in range(ROWS)]
    path.write_text("\n".join([names, *rows]) + "\n")


def test_an_index_that_the_job_names_is_what_the_job_says(tmp_path: Path) -> None:
    write(tmp_path / "t.csv", "", 1)
    assert load(csv_spec(ignore=[1]), tmp_path).notes == ()
    assert load(csv_spec(categories=[1]), tmp_path).features == (ROWS + 2,)
    write(tmp_path / "t.csv", "Unnamed: 0", 1)
    assert load(csv_spec(ignore=["Unnamed: 0"]), tmp_path).notes == ()


def test_another_column_without_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y,\n1,0,\n2,1,\n")
    with pytest.raises(DataError, match=r"t\.csv: column 3 has no name in the header: .*data\.ignore \(does each line"):
        load(csv_spec(), tmp_path)
    assert load(csv_spec(ignore=[-1]), tmp_path).columns == ("a",)


@pytest.mark.parametrize("header", ["a,a,y", "a, a ,y", "a,y,y"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\n1,2,0\n2,3,1\n")
    with pytest.raises(DataError, match=rf"t\.csv: 2 columns are called '{'y' if 'y,y' in header else 'a'}'"):
        load(csv_spec(), tmp_path)
    if "y,y" not in header:
        assert load(csv_spec(ignore=[2]), tmp_path).columns == ("a",)


def test_other_files_have_their_columns_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,y\n1,2,0\n3,4,1\n")
    (tmp_path / "v.csv").write_text("y,b,a\n0,2,1\n1,4,3\n")
    data = load(csv_spec(validation_file="v.csv"), tmp_path)
    assert data.validation is not None
    assert data.validation.inputs.tolist() == [[1, 2], [3, 4]]
    (tmp_path / "v.csv").write_text("y,b,a,c\n0,2,1,9\n")
    with pytest.raises(DataError, match=r"v\.csv: has a column 'c', which t\.csv has not"):
        load(csv_spec(validation_file="v.csv"), tmp_path)


def parquet_of(frame: Any, path: Path) -> None:
    frame.to_parquet(path, row_group_size=4)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_index_of_parquet_is_left_out_and_said(tmp_path: Path, streamed: bool) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": np.arange(ROWS) % 5, "y": np.arange(ROWS) % 2})
    inputs = (frame[["a"]].to_numpy() * 1.0).tolist()
    many = pandas.MultiIndex.from_arrays([np.arange(ROWS) ** 2, np.arange(ROWS) ** 3])
    days = pandas.date_range("2026-01-01", periods=ROWS, name="day")
    for index, names in (
        (frame.index, []),
        (pandas.Index(np.arange(ROWS) ** 2), ["__index_level_0__"]),
        (pandas.Index(np.arange(ROWS) ** 2, name="id"), ["id"]),
        (many, ["__index_level_0__", "__index_level_1__"]),
        (days, ["day"]),
    ):
        parquet_of(frame.set_axis(index), tmp_path / "t.parquet")
        data = load(parquet_spec(streamed=streamed), tmp_path)
        assert data.columns == ("a",)
        assert [all(name in note for name in names) for note in data.notes] == [True] * bool(names)
        assert data.form is not None
        form = SampleForm.parse(data.form.text)
        assert read_samples(tmp_path / "t.parquet", parquet_spec(), form).tolist() == inputs
    wanted = load(parquet_spec(streamed=streamed, dates="day"), tmp_path)
    assert (wanted.columns, wanted.notes) == (("a", "day"), ())


def test_files_with_the_index_and_without_it_are_one_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": np.arange(ROWS) * 1.0, "y": np.arange(ROWS) % 2})
    parquet_of(frame, tmp_path / "1.parquet")
    parquet_of(frame.sample(frac=1, random_state=0), tmp_path / "2.parquet")
    for files in (["1.parquet", "2.parquet"], ["2.parquet", "1.parquet"]):
        data: Dataset = load(parquet_spec(files=files), tmp_path)
        assert data.columns == ("a",)
        assert data.train is not None
        assert len(data.train) == 2 * ROWS


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = pa.array(np.arange(ROWS))
    for names in (["a", "a", "y"], ["a", "a ", "y"], ["a", "y ", "y"]):
        pq.write_table(pa.table([rows, rows, pa.array(np.arange(ROWS) % 2)], names=names), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=r"t\.parquet: 2 columns are called '[ay]'"):
            load(parquet_spec(), tmp_path)
