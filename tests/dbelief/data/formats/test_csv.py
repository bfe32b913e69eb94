"""Separated text: columns by name or number, classes as numbers or words, sets cut off or from files of their own."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.data import Dataset, Samples, load
from dbelief.errors import DataError
from dbelief.job import CsvData

FLOWERS = """sepal,petal,kind
5.1,1.4,setosa
7.0,4.7,versicolor
4.9,1.5, setosa
6.3,6.0,"virginica"
"""


def spec(folder: Path, text: str | bytes = FLOWERS, **options: Any) -> CsvData:
    (folder / "t").write_bytes(text if isinstance(text, bytes) else text.encode())
    fields = {"kind": "classes", "target": ["kind"], "validation": 0, "test": 0, **options}
    return CsvData.model_validate({"source": "csv", "file": "t", **fields})


def sets(data: Dataset) -> tuple[Samples, Samples, Samples]:
    assert data.train is not None
    assert data.validation is not None
    assert data.test is not None
    return data.train, data.validation, data.test


def train(data: Dataset) -> Samples:
    assert data.train is not None
    return data.train


def test_words_are_classes_in_their_order(tmp_path: Path) -> None:
    data = load(spec(tmp_path), tmp_path)
    assert train(data).inputs.dtype == np.float32
    expected = np.array([[5.1, 1.4], [7.0, 4.7], [4.9, 1.5], [6.3, 6.0]], np.float32)
    assert np.array_equal(train(data).inputs, expected)
    assert train(data).targets.tolist() == [0, 1, 0, 2]
    assert (data.classes, data.features, data.validation, data.test) == (3, (2,), None, None)
    assert data.names == ("setosa", "versicolor", "virginica")


def test_integer_classes_are_in_numeric_order(tmp_path: Path) -> None:
    data = load(spec(tmp_path, "10,1\n-2,2\n9.0,3\n9,4\n", header=False, target=[1]), tmp_path)
    assert train(data).targets.tolist() == [2, 0, 1, 1]
    assert data.names == ("-2", "9", "10")
    assert train(data).inputs.ravel().tolist() == [1, 2, 3, 4]
    assert load(spec(tmp_path, "1,1\n0,2\n", header=False, target=[1]), tmp_path).names is None
    mixed = load(spec(tmp_path, "10,1\n9,2\nnone,3\n", header=False, target=[1]), tmp_path)
    assert mixed.names == ("10", "9", "none")


@pytest.mark.parametrize("target", [["b", "d"], [2, 4], [-3, -1]])
def test_numbers_to_find_are_any_columns_in_any_order(tmp_path: Path, target: list[str | int]) -> None:
    text = "a;b;c;d\n1;2;3;4\n5;6;7;8\n"
    data = load(spec(tmp_path, text, kind="regression", target=target, delimiter=";", scale=0.5), tmp_path)
    assert train(data).targets.tolist() == [[2, 4], [6, 8]]
    assert train(data).targets.dtype == np.float32
    assert train(data).inputs.tolist() == [[1, 3], [5, 7]]
    assert train(data).scale == 0.5
    assert (data.classes, data.names) == (None, None)
    turned = load(spec(tmp_path, text, kind="regression", target=target[::-1], delimiter=";"), tmp_path)
    assert train(turned).targets.tolist() == [[4, 2], [8, 6]]


def test_ignored_columns_may_hold_anything(tmp_path: Path) -> None:
    text = 'id\tx\tkind\tnote\na,1\t1\t0\t"say\n"\n\t2\t1\tx\n'
    data = load(spec(tmp_path, text, delimiter="\t", ignore=["note", 1]), tmp_path)
    assert train(data).inputs.tolist() == [[1], [2]]


def test_sets_may_have_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("sepal,petal,kind\n1,2,virginica\n")
    (tmp_path / "w").write_text("sepal,petal,kind\n3,4,setosa\n")
    job = spec(tmp_path, validation_file="v", test_file="w", validation=0.9, test=0.9)
    parts = sets(load(job, tmp_path))
    assert [len(part) for part in parts] == [4, 1, 1]
    assert (parts[1].targets.tolist(), parts[2].targets.tolist()) == ([2], [0])
    (tmp_path / "w").unlink()
    assert load(job, tmp_path, need=("train", "validation")).test is None


def test_a_gz_file_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + FLOWERS.replace("\n", "\r\n").encode()
    (tmp_path / "t.gz").write_bytes(gzip.compress(text))
    data = load(spec(tmp_path).model_copy(update={"file": "t.gz"}), tmp_path)
    assert data.names == ("setosa", "versicolor", "virginica")
    assert train(data).inputs.shape == (4, 2)
    headerless = spec(tmp_path, b"\xef\xbb\xbf1,0\r\n2,1\r\n", header=False, target=[2])
    assert train(load(headerless, tmp_path)).inputs.tolist() == [[1], [2]]


COLUMN = "column 3 ('kind')"
WRONG: list[tuple[str, str | bytes, dict[str, Any], str]] = [
    ("t: is empty", "", {}, ""),
    ("t: has no rows", "\n\n", {}, ""),
    ("t: has no rows below its header", "sepal,petal,kind\n", {}, ""),
    ("t: its first row holds numbers only; for a file without a header say header: false", "1,2\n", {}, ""),
    ("t: no column is called 'kidn'; did you mean 'kind'?", FLOWERS, {"target": ["kidn"]}, ""),
    ("t: 2 columns are called 'kind'", "kind,x,kind\na,1,b\n", {}, ""),
    ("t: there is no column 4, its first row has 3", FLOWERS, {"target": [4]}, ""),
    ("t: there is no column -4, its first row has 3", FLOWERS, {"target": [-4]}, ""),
    ("t: column 'kind' is a name, and header is false; give its number from 1", "1,2\n", {"header": False}, ""),
    ("t: column 3 ('kind') is named twice by target and ignore", FLOWERS, {"ignore": [-1]}, ""),
    ("t: no column is left for inputs, of 1; is the delimiter ';'?", FLOWERS, {"delimiter": ";", "target": [1]}, ""),
    ("t, line 1, column 1: 'sepal' is not a number (and 1 more)", FLOWERS, {"header": False, "target": [3]}, ""),
    ("t, line 3, column 2 ('petal'): is empty, must be a number; data.missing: mean or zero fills gaps of inputs"
, FLOWERS.replace("4.7", ""), {}, ""),
    ("t, line 4, column 1 ('sepal'): 'NA' stands for a missing value, must be a number; "
     "data.missing: mean or zero fills gaps of inputs", FLOWERS.replace("4.9", "NA"), {}, ""),
    ("t, line 4, column 1 ('sepal'): 'NA' is not a number", FLOWERS.replace("4.9", "NA"), {"missing_words": False}, ""),
    ("t, line 5, column 1 ('sepal'): 'inf' is not a finite float32", FLOWERS.replace("6.3", "inf"), {}, ""),
    ("t, line 5: has 2 of 3 fields", FLOWERS[: FLOWERS.rindex(",")], {}, ""),
    (f"t, line 3, {COLUMN}: is empty, must name a class", FLOWERS.replace("versicolor", ""), {}, ""),
    (f"t, line 3, {COLUMN}: is not UTF-8", FLOWERS.encode().replace(b"versi", b"\xff"), {}, ""),
    ("t, line 1: is not UTF-8", FLOWERS.encode().replace(b"petal", b"\xff"), {}, ""),
    ("t, line 1: is no row of fields (unexpected end of data)", '"sepal,petal', {}, ""),
    (
        "t, line 2, column 1 ('kind'): class '0.5' is a number, but no whole one; "
        "for targets that are numbers say kind: regression",
        "kind,x\n0.5,1\n1,1\n",
        {},
        "",
    ),
    ("t: all training samples have the same label, a", "kind,x\na,1\na,2\n", {}, ""),
    ("t: of 4 samples, 0 for validation and 2 for test leave no sample of each class to train on", FLOWERS, {
        "test": 2
    }, ""),
    ("v: no column is called 'petal'; did you mean 'sepal'?", FLOWERS, {"test_file": "v"}, "sepal,kind\n1,setosa\n"),
    (f"v, line 3, {COLUMN}: class 'rose' is not in the training file", FLOWERS, {"test_file": "v"},
     "sepal,petal,kind\n1,2,setosa\n1,2,rose\n"),
    (f"v, line 2, {COLUMN}: is empty, must name a class", FLOWERS, {"test_file": "v"}, "sepal,petal,kind\n1,2,\n"),
    ("v: no such file", FLOWERS, {"test_file": "v"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "text", "options", "other"), WRONG, ids=[row[0][:60] for row in WRONG])
def test_a_wrong_file_is_named_with_line_and_column(
    tmp_path: Path, words: str, text: str | bytes, options: dict[str, Any], other: str
) -> None:
    if other:
        (tmp_path / "v").write_text(other)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / words))}$"):
        load(spec(tmp_path, text, **options), tmp_path)
