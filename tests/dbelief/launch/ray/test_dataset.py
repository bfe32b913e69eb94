"""Blocks of a dataset of Ray before they are written: their rows, and what a job cannot train with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import UserError
from dbelief.job import ParquetData
from dbelief.launch.ray.dataset import check_blocks, examined, write_block

pyarrow = pytest.importorskip("pyarrow")

SPEC = ParquetData(source="parquet", kind="classes", files=("dataset",), target=("label",))
LABELS = ["a", "b", "a"]


def checked(*tables: dict[str, Any], **fields: Any) -> None:
    blocks = [examined(pyarrow.table(one), "") for one in tables]
    check_blocks("dataset", blocks, SPEC.model_copy(update=fields))


def test_a_block_is_written_once_with_its_units(tmp_path: Path) -> None:
    from pyarrow.parquet import ParquetFile

    table, where = pyarrow.table({"x": range(10), "label": list("abcdefghij")}), tmp_path / "dataset-1" / "0.parquet"
    write_block(table, where, 4)
    assert [ParquetFile(where).metadata.row_group(n).num_rows for n in range(3)] == [4, 4, 2]
    assert ParquetFile(where).read().equals(table)
    stamp = where.stat()
    write_block(table, where, 4)
    assert where.stat() == stamp


def test_the_digest_is_of_the_content() -> None:
    def digest(**columns: Any) -> str:
        return examined(pyarrow.table(columns), "").digest

    assert digest(x=[1, 2]) == digest(x=[1, 2])
    assert len({digest(x=[1, 2]), digest(x=[2, 1]), digest(x=[1.0, 2.0]), digest(x=[1, None])}) == 4


def test_tensors_of_one_shape_are_lists() -> None:
    import numpy as np

    images = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3))
    block = examined(pyarrow.table({"image": images, "label": ["a", "b"]}), "")
    check_blocks("dataset", [block], SPEC)
    assert block.head["image"].to_pylist() == [[0, 1, 2, 3, 4, 5]]


def test_gaps_that_the_job_fills_or_ignores() -> None:
    checked({"x": [1.0, None, float("nan")], "label": LABELS}, missing="mean")
    checked({"x": [1, 2, 3], "note": ["", None, ""], "label": LABELS}, ignore=("note",))


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([], "dataset: there are no rows"),
        ([{"x": [1, 2, 3]}], "dataset: no column is called 'label' (data.target)"),
        ([{"x": LABELS, "label": LABELS}], "dataset: column 'x' holds texts: list it in data.categories, hashed,"),
        ([{"x": [{"y": 1}] * 3, "label": LABELS}], "dataset: column 'x' is struct<y: int64>, which cannot be an input"),
        ([{"x": [1, 2, 3], "label": [[1]] * 3}], "dataset: target 'label' is list<element: int64>, must hold tex"),
        ([{"x": [1], "label": ["a"]}, {"x": [1.5], "label": ["a"]}], "dataset, block 1: columns are (x: double, label"),
        (
            [{"x": [1], "label": ["a"]}, {"x": [1, None], "label": ["a", "b"]}],
            "dataset, block 1, column 'x', row 1 (from 0): is missing; data.missing: mean or zero fills gaps",
        ),
        ([{"x": [float("nan")], "label": ["a"]}], "dataset, block 0, column 'x', row 0 (from 0): is missing"),
        ([{"x": [1, 2], "label": ["a", None]}], "dataset, block 0, column 'label', row 1 (from 0): a target is missi"),
    ],
)
def test_what_a_job_cannot_train_with_is_refused(tables: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        checked(*tables)
