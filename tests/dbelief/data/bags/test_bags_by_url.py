"""Streams of objects of a store are those of files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.data.bags import SparseBatch, read_csv, read_libsvm, read_parquet, read_vw
from dbelief.url import Url
from tests.dbelief.data.bags.test_column_streams import COLUMNS, CSV, parquet_file, table
from tests.dbelief.data.sources import copy

TEXTS = {"t.svm": "1 3:1\n0\n1 5:2\n", "t.vw": "1 |a b c\n0 |a\n1 |a c:2\n", "t.csv": CSV}
READERS: dict[str, Callable[[Any], Any]] = {
    "t.svm": lambda files: read_libsvm(files, size=2),
    "t.vw": lambda files: read_vw(files, size=2),
    "t.csv": lambda files: read_csv(files, **COLUMNS, size=2),
    "t.parquet": lambda files: read_parquet(files, **COLUMNS, size=2),
}


@pytest.mark.parametrize("name", READERS)
def test_a_stream_by_url_is_the_one_by_path(name: str, tmp_path: Path) -> None:
    if name == "t.parquet":
        parquet_file(tmp_path, table())
    else:
        (tmp_path / name).write_text(TEXTS[name])
    prefix = Url(f"memory://{uuid.uuid4().hex}")
    copy(tmp_path, prefix)
    expected = SparseBatch.joined(list(READERS[name](tmp_path / name)))
    stream = READERS[name](f"{prefix}/{name}")
    units = [batch for unit in stream.units for batch in stream.read(unit)]
    assert len(units) == 2
    for found in (SparseBatch.joined(list(stream)), SparseBatch.joined(units)):
        assert np.array_equal(found.labels, expected.labels)
        for own, bag in expected.bags.items():
            assert np.array_equal(found.bags[own].keys, bag.keys)
            assert np.array_equal(found.bags[own].offsets, bag.offsets)
