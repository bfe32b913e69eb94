"""Streams of CSV and of Parquet with columns of ids: the same rows from both, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from dbelief.data.bags import SparseBatch, read_csv, read_parquet
from dbelief.errors import DataError
from dbelief.sparse.text_keys import text_keys

CSV = """\
click,user,tags,site,weight
1,17,a|b, n.example ,1

0,-5,,"n, ""x"" ",0.5
0.5,9223372036854775807,c| |a,,2
"""
COLUMNS: dict[str, Any] = {"label": "click", "ids": ["user"], "texts": ["tags", "site"], "weight": "weight"}


def csv_file(folder: Path, text: str = CSV, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def table(**columns: Any) -> pyarrow.Table:
    found = {
        "click": [1, 0, 0.5],
        "user": [17, -5, 2**63 - 1],
        "tags": [["a", "b"], None, ["c", None, "a"]],
        "site": ["n.example", 'n, "x"', None],
        "weight": [1, 0.5, 2],
    }
    return pyarrow.table(found | columns)


def parquet_file(folder: Path, columns: pyarrow.Table, name: str = "t.parquet", rows: int = 2) -> Path:
    path = folder / name
    parquet.write_table(columns, path, row_group_size=rows)
    return path


def check(batch: SparseBatch) -> None:
    """The rows of `CSV`."""
    assert batch.labels.tolist() == [1, 0, 0.5]
    assert batch.weights.tolist() == [1, 0.5, 2]
    assert batch.bags["user"].keys.tolist() == [17, -5, 2**63 - 1]
    assert batch.bags["tags"].keys.tolist() == text_keys(["a", "b", "c", "a"]).tolist()
    assert batch.bags["tags"].offsets.tolist() == [0, 2, 2]
    assert batch.bags["tags"].values.tolist() == [1, 1, 1, 1]
    assert batch.bags["site"].keys.tolist() == text_keys(["n.example", 'n, "x"']).tolist()
    assert batch.bags["site"].offsets.tolist() == [0, 1, 2]
    for bag in batch.bags.values():
        assert [own.dtype.name for own in (bag.keys, bag.offsets, bag.values)] == ["int64", "int64", "float32"]


def test_rows_of_csv(tmp_path: Path) -> None:
    check(SparseBatch.joined(list(read_csv(csv_file(tmp_path), **COLUMNS, split={"tags": "|"}, size=2))))
    packed = tmp_path / "p.csv.gz"
    packed.write_bytes(gzip.compress(("\ufeff" + CSV.replace("\n", "\r\n")).encode()))
    check(SparseBatch.joined(list(read_csv(packed, **COLUMNS, split={"tags": "|"}, size=2))))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_rows_of_parquet(size: int, tmp_path: Path) -> None:
    batches = list(read_parquet(parquet_file(tmp_path, table()), **COLUMNS, size=size))
    assert len(batches) == (3 if size == 1 else 2)
    check(SparseBatch.joined(batches))


def test_types_of_parquet(tmp_path: Path) -> None:
    columns = table(
        user=pyarrow.array([[1, 2], None, [3, 4]], pyarrow.list_(pyarrow.uint64(), 2)),
        site=pyarrow.array(["n.example", None, "n.example"]).dictionary_encode(),
        tags=pyarrow.array([["a"], [], None], pyarrow.large_list(pyarrow.large_string())),
        click=pyarrow.array([True, False, True]),
    )
    (batch,) = read_parquet(parquet_file(tmp_path, columns, rows=9), **COLUMNS)
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.bags["user"].keys.tolist() == [1, 2, 3, 4]
    assert batch.bags["user"].offsets.tolist() == [0, 2, 2]
    assert batch.bags["site"].keys.tolist() == text_keys(["n.example"] * 2).tolist()
    assert batch.bags["tags"].offsets.tolist() == [0, 1, 1]


def test_units_are_lines_or_row_groups(tmp_path: Path) -> None:
    lines = read_csv([csv_file(tmp_path), csv_file(tmp_path, name="u.csv")], **COLUMNS, split={"tags": "|"}, size=2)
    assert list(lines.units) == [
        f"{tmp_path / name}, lines {span}" for name in ("t.csv", "u.csv") for span in ("2 to 4", "5 to 5")
    ]
    groups = read_parquet(parquet_file(tmp_path, table()), **COLUMNS, size=1)
    assert list(groups.units) == [f"{tmp_path / 't.parquet'}, row group {number}" for number in (0, 1)]
    for stream, units in ((lines, lines.units[:2]), (groups, groups.units)):
        check(SparseBatch.joined([batch for unit in units for batch in stream.read(unit)]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("click,user\n1,2\n1\n", "{}, line 3: has 1 of 2 fields"),
        ("click,user\n1,2\n1,2,3\n", "{}, line 3: has more than 2 fields"),
        ("click,user\n1,2\nyes,2\n", "{}, line 3, column 'click': 'yes' is not a number"),
        ("click,user\n1,2\nnan,2\n", "{}, line 3, column 'click': 'nan' is not a finite float32"),
        ("click,user\n1,2\n,2\n",
         "{}, line 3, column 'click': is empty, must be a number; labels and weights are in every row"),
        ("click,user\n1,2\ninf,2\n", "{}, line 3, column 'click': 'inf' is not a finite float32"),
        ("click,user\n1,2\n1,x\n", "{}, line 3: column 'user': 'x' is not a whole number"),
        ("click,user\n1,2\n1,9223372036854775808\n",
         "{}, line 3: column 'user': '9223372036854775808' has more than 64 bits"),
        ('click,user\n1,"2\n"\n', "{}, lines 2 to 3: a quoted field holds the end of a line"),
        ("click,user\n", "{}: has no rows"),
        ("click,User\n1,2\n", "{}: no column is called 'user'; did you mean 'User'?"),
        ("1,2\n", "{}: no column is called 'click'"),
    ],
)  # fmt: skip
def test_csv_that_cannot_be_read_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = csv_file(tmp_path, text)
    with pytest.raises(DataError) as refused:
        list(read_csv(path, "click", ["user"]))
    assert str(refused.value) == message.format(path)


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    paths = csv_file(tmp_path), csv_file(tmp_path, CSV.replace("user,tags", "tags,user"), "u.csv")
    message = r"u\.csv: its first line is 'click,tags,user,site,weight', and that of the first file is another one$"
    with pytest.raises(DataError, match=message):
        _ = read_csv(paths, **COLUMNS).units


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": [1.5, 2, 3]}, "{}: column 'user' is double, must be whole numbers, or lists of them"),
        ({"site": [[1], [2], [3]]}, "{}: column 'site' is list<element: int64>, must be texts, or lists of them"),
        ({"click": ["1", "0", "1"]}, "{}: column 'click' is string, must be numbers"),
        ({"user": pyarrow.array([1, 2, 2**63], pyarrow.uint64())},
         "{}, row group 1, from row 0, column 'user', row 0 (from 0): the key 9223372036854775808 is beyond int64: "
         "keys are from -2^63 to 2^63 - 1"),
        ({"user": pyarrow.array([[1], None, [3, 2**63 + 1]], pyarrow.list_(pyarrow.uint64())), "click": [1, 1, 1]},
         "{}, row group 1, from row 0, column 'user', row 0 (from 0): the key 9223372036854775809 is beyond int64: "
         "keys are from -2^63 to 2^63 - 1"),
        ({"click": [1, None, 0]}, "{}, row group 0, from row 0, column 'click', row 1 (from 0): a target is missing"),
        ({"weight": [1, -1.0, 0]}, "{}, row group 0, from row 0, column 'weight', row 1 (from 0): a weight is below 0"),
        ({"click": [1, 1, float("inf")]},
         "{}, row group 1, from row 0, column 'click', row 0 (from 0): is infinite, or too large for float32"),
    ],
)  # fmt: skip
def test_parquet_that_cannot_be_read_is_named(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = parquet_file(tmp_path, table(**columns))
    with pytest.raises(DataError) as refused:
        list(read_parquet(path, **COLUMNS))
    assert str(refused.value) == message.format(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": ()}, r"ids is \(\) and texts \(\), must be lists of columns, one at least"),
        ({"ids": "user"}, r"ids is 'user' and texts \(\), must be lists of columns, one at least"),
        ({"ids": ["user"], "weight": "user"}, "column 'user' is named twice"),
        ({"ids": ["user"], "split": {"tags": "|"}}, r"split is \{'tags': '\|'\}, must have columns of ids or texts"),
        ({"ids": ["user"], "delimiter": ""}, "delimiter is '', must be one character of ASCII"),
        ({"ids": ["user"], "size": 0}, "size is 0, must be 1 or more"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        read_csv(csv_file(tmp_path), "click", **arguments)
