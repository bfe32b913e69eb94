"""Tables as people have them: read as pandas reads them, or refused in one line that names the place."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.sample_form import SampleForm
from dbelief.data import load, sizes
from dbelief.data.new_samples import read_samples
from dbelief.errors import DataError
from dbelief.job import CsvData


def spec(folder: Path, content: str | bytes, **fields: Any) -> CsvData:
    (folder / "t.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    own = {"source": "csv", "file": "t.csv", "kind": "classes", "target": "y", "validation": 0, "test": 0}
    return CsvData.model_validate(own | fields)


READ: dict[str, tuple[str | bytes, dict[str, Any], dict[str, Any]]] = {
    "quoted numbers": ('a,y\n"1",0\n" 2.5 ",1\n', {}, {}),
    "a leading plus": ("a,y\n+1,0\n+2e3,1\n", {}, {}),
    "numbers too small for a float": ("a,y\n1e-400,0\n-1e-50,1\n", {}, {}),
    "blanks around everything": (" a , y \n 1 , 0 \n\t2\t,1\n", {}, {"skipinitialspace": True, "names": ["a", "y"]}),
    "rows that are there twice": ("a,y\n1,0\n1,0\n2,1\n", {}, {}),
    "semicolons": ("a;y\n1;0\n2;1\n", {"delimiter": ";"}, {"sep": ";"}),
    "no line feed at the end": ("a,y\n1,0\n2,1", {}, {}),
    "line ends of two kinds": ("a,y\r\n1,0\n2,1\r\n", {}, {}),
    "carriage returns alone": ("a,y\r1,0\r2,1\r", {}, {}),
    "empty lines": ("\n\na,y\n\n1,0\n\n2,1\n\n\n", {}, {}),
    "a byte order mark": (b"\xef\xbb\xbfa,y\n1,0\n2,1\n", {}, {}),
    "names that differ by case": ("a,A,y\n1,2,0\n2,1,1\n", {}, {}),
    "gaps in many words": ("a,y\nNA,0\n<NA>,0\nnull,1\n#N/A,1\n-nan,0\nN/A,0\n4,1\n", {"missing": "zero"}, {}),
    "digits behind the fifteenth": (
        "a,y\n0.1000000000000000055511151231257827,0\n123456789012345678901234567890,1\n",
        {},
        {},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_pandas_reads(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas")
    content, fields, options = READ[name]
    job = spec(tmp_path, content, **fields)
    data = load(job, tmp_path)
    assert data.train is not None
    raw = content.encode() if isinstance(content, str) else content
    header = {"header": 0} if "names" in options else {}
    frame = pandas.read_csv(io.BytesIO(raw), **options, **header)
    expected = frame.drop(columns="y").to_numpy(np.float64)
    if fields.get("missing"):
        expected = np.nan_to_num(expected)
    assert data.columns == tuple(frame.columns.drop("y"))
    with np.errstate(under="ignore"):
        assert np.array_equal(data.train.inputs, expected.astype(np.float32))
    assert data.train.targets.tolist() == frame["y"].tolist()
    assert sizes(job, tmp_path) == (len(frame), 0, 0)
    assert data.form is not None
    new = read_samples(tmp_path / "t.csv", job, SampleForm.parse(data.form.text))
    assert np.array_equal(new, data.train.inputs)


REFUSED: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "too large": ("a,y\n1e400,0\n", {}, "line 2, column 1 ('a'): '1e400' is not a finite float32"),
    "too large, standardised": (
        "a,y\n1e39,0\n",
        {"standardize": True},
        "line 2, column 1 ('a'): '1e39' is not a finite",
    ),
    "a null byte": ("a,y\n1\0,0\n", {}, "line 2, column 1 ('a'): '1\\x00' is not a number"),
    "no such day": ("a,y\n2026-02-30,0\n", {"dates": "a"}, "line 2, column 1 ('a'): is '2026-02-30', no date such as"),
    "a later date": (
        "a,y\n2026-01-01,0\n,1\nx,1\n",
        {"dates": "a", "missing": "mean"},
        "line 4, column 1 ('a'): is 'x'",
    ),
    "UTF-16": ("a,y\n1,0\n".encode("utf-16"), {}, "t.csv: is UTF-16, must be UTF-8"),
    "a spreadsheet": (b"PK\x03\x04 and more", {}, "t.csv: is a zip archive or a spreadsheet, must be text"),
    "gzip of another name": (gzip.compress(b"a,y\n1,0\n"), {}, "t.csv: is a gzip file, whose name must end in .gz"),
    "one row": ("a,y\n1,0\n", {}, "t.csv: all training samples have the same label, 0"),
    "another delimiter": (
        "a;y\n1;0\n",
        {},
        "no column is called 'y'; the header is one column, 'a;y': is the delimiter",
    ),
    "an index alone": (",y\n0,0\n1,1\n", {}, "t.csv: no column is left for inputs, of 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    content, fields, why = REFUSED[name]
    job = spec(tmp_path, content, **fields)
    with pytest.raises(DataError) as caught:
        load(job, tmp_path)
    said = str(caught.value)
    assert why in said
    assert "\n" not in said
    assert said.startswith(str(tmp_path / job.file))


def test_constant_columns_are_zero(tmp_path: Path) -> None:
    text = "a,b,y\n0.1,1e15,0\n0.1,1e15,1\n0.1,1e15,1\n"
    data = load(spec(tmp_path, text, standardize=True), tmp_path)
    assert data.train is not None
    assert not np.asarray(data.train.inputs).any()


def test_texts_of_any_length_are_counted(tmp_path: Path) -> None:
    job = spec(tmp_path, 'a,t,y\n1,"' + "x" * 140_000 + '",0\n2,z,1\n', ignore="t")
    assert load(job, tmp_path).columns == ("a",)
    assert sizes(job, tmp_path) == (2, 0, 0)


def test_whole_numbers_of_many_digits_are_classes_of_their_own(tmp_path: Path) -> None:
    text = "a,y\n1,9007199254740992\n2,9007199254740993\n3,+1\n4,1.0\n5,100000000000000000000\n"
    data = load(spec(tmp_path, text), tmp_path)
    assert data.names == ("1", "9007199254740992", "9007199254740993", "100000000000000000000")
    assert data.train is not None
    assert data.train.targets.tolist() == [1, 2, 0, 0, 3]
    with pytest.raises(
        DataError, match=r"line 2, column 2 \('y'\): class '1e20' is a number of more digits than float64"
    ):
        load(spec(tmp_path, "a,y\n1,1e20\n2,1\n"), tmp_path)


def test_dates_in_all_forms_of_iso_8601(tmp_path: Path) -> None:
    texts = [
        "2026-01-02",
        "2026-01-02T12:00Z",
        "2026-01-02 06:00",
        "20260102",
        "2026-01-02T02:00:00+02:00",
        "2026-W01-5",
    ]
    rows = "".join(f"{text},{place % 2}\n" for place, text in enumerate(texts))
    data = load(spec(tmp_path, f"a,y\n{rows}", dates="a"), tmp_path)
    assert data.train is not None
    assert data.train.inputs.ravel().tolist() == [20455, 20455.5, 20455.25, 20455, 20455, 20455]
