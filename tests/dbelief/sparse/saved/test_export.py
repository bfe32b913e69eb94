"""Files of a table's rows, read by the libraries of their formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from safetensors import safe_open

from dbelief.cli.main import main
from dbelief.sparse.table import SparseTable
from tests.dbelief.sparse.saved.saved_run import SET, made, pushed
from tests.ps_server.store.test_bucket import IDS, USER, Served

KEYS = np.arange(IDS) * 7 - 99


@pytest.fixture
def served() -> Served:
    served = Served(2, "lazy-adam")
    pushed(served, KEYS)
    return served


def exported(tmp_path: Path, served: Served, form: str) -> Path:
    made(tmp_path / "run", served, "lazy-adam")
    done = CliRunner().invoke(main, ["export", f"{tmp_path}/run", "--tables", f"{tmp_path}/rows", "--format", form])
    path = tmp_path / "rows" / f"user.{form}"
    source = f"snapshot set {tmp_path}/run/snapshots/{SET}, after 240 samples"
    assert done.output == f"{path}: {IDS} rows of 3 numbers, from {source}\n"
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    return path


def check(served: Served, keys: np.ndarray, rows: np.ndarray, about: dict[str, str]) -> None:
    """Whether these are all rows, and initial rows follow from what the file says."""
    assert sorted(keys.tolist()) == KEYS.tolist()
    np.testing.assert_array_equal(rows, served.read(keys))
    names = {"table": "user", "job": "clicks", "set": SET, "samples": "240"}
    assert names.items() <= about.items()
    numbers = int(about["width"]), int(about["salt"]), float(about["limit"])
    table = SparseTable(about["table"], *numbers, rate=0.1, first=1, count=int(about["buckets"]))
    assert table == USER


def test_safetensors(served: Served, tmp_path: Path) -> None:
    with safe_open(exported(tmp_path, served, "safetensors"), framework="numpy") as file:
        assert set(file.keys()) == {"user.starts", "user.keys", "user.rows"}
        starts, keys, rows = (file.get_tensor(f"user.{name}") for name in ("starts", "keys", "rows"))
        about = file.metadata()
    assert (keys.dtype, rows.dtype, rows.shape) == (np.int64, np.float32, (IDS, 3))
    check(served, keys, rows, about)
    order, parts = USER.split(KEYS)
    np.testing.assert_array_equal(keys, KEYS[order])
    assert [index - USER.first for index, _ in parts] == np.flatnonzero(np.diff(starts)).tolist()
    assert (starts[0], starts[-1]) == (0, IDS)


def test_parquet(served: Served, tmp_path: Path) -> None:
    with pyarrow.parquet.ParquetFile(exported(tmp_path, served, "parquet")) as file:
        assert file.schema_arrow.types == [pyarrow.int64(), pyarrow.list_(pyarrow.float32(), 3)]
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
        about = {name.decode(): value.decode() for name, value in file.schema_arrow.metadata.items()}
    of_groups = [{index for index, _ in USER.split(group["key"].to_numpy())[1]} for group in groups]
    assert sorted(of_groups, key=min) == [{index} for index, _ in USER.split(KEYS)[1]]
    whole = pyarrow.concat_tables(groups)
    rows = np.array(whole["row"].to_pylist(), np.float32)
    check(served, whole["key"].to_numpy(), rows, about)
