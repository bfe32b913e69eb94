"""Rows of a run's tables, read by key out of its set and out of files: the bits that a shard gives."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import dbelief
from dbelief.checkpoint.object_sets import ObjectSets
from dbelief.cli.main import main
from dbelief.errors import CorruptSnapshot, DataError, UserError
from dbelief.sparse.saved.export import export_tables
from dbelief.storage.object_store import connect
from dbelief.url import parse_url
from tests.dbelief.monitor.test_status import JOB as WITHOUT_TABLES
from tests.dbelief.sparse.saved.saved_run import JOB, made, pushed, save
from tests.examples import examples
from tests.ps_server.store.test_bucket import USER, Served
from tests.traced import traced

KEYS = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)


@examples(40)
@given(
    st.lists(st.lists(KEYS, unique=True, max_size=40), max_size=3),
    st.lists(KEYS, max_size=20),
    st.sampled_from(["sgd", "adagrad", "row-adagrad", "lazy-adam"]),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_rows_have_the_bits_that_a_shard_gives(
    pushes: list[list[int]], others: list[int], rule: str, shards: int, seed: int
) -> None:
    """Also of keys without a row, in any order, and repeated."""
    served = Served(shards, rule)
    for number, keys in enumerate(pushes):
        pushed(served, np.array(keys, np.int64), number)
    distinct = list(dict.fromkeys([*others, *(key for keys in pushes for key in keys)]))
    wanted = np.array(distinct, np.int64)
    expected = served.read(wanted)
    with_rows = np.isin(wanted, [key for keys in pushes for key in keys])
    places = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(distinct)), 2))
    with tempfile.TemporaryDirectory() as folder:
        run, rows = made(Path(folder) / "run", served, rule), Path(folder) / "rows"
        (line,) = export_tables(run, "safetensors", rows)
        assert f"rows/user.safetensors: {with_rows.sum()} rows of 3 numbers, from snapshot set {run}" in line
        for source in (run, rows, rows / "user.safetensors"):
            table = dbelief.load_tables(source)["user"]
            zero = dbelief.load_tables(source, unseen="zero")["user"]
            assert len(table) == with_rows.sum()
            assert table.width == 3
            np.testing.assert_array_equal(bits(table.rows(wanted)), bits(expected))
            np.testing.assert_array_equal(bits(table.rows(wanted[places])), bits(expected[places]))
            np.testing.assert_array_equal(zero.rows(wanted), expected * with_rows[:, None])


def bits(rows: np.ndarray) -> np.ndarray:
    return rows.view(np.uint32)


def test_a_run_in_a_store_gives_the_same_rows(tmp_path: Path) -> None:
    served = Served(2)
    pushed(served, np.arange(100))
    url = parse_url(f"memory://tables/{tmp_path.name}/clicks")
    store = connect(url)
    store.replace(url / "job.yaml", JOB.replace("RULE", "adagrad").encode())
    save(ObjectSets(store, url / "snapshots"), served)
    keys = np.arange(-50, 150)
    done = CliRunner().invoke(main, ["export", url, "--tables", f"{tmp_path}/rows"])
    assert f"rows/user.safetensors: 100 rows of 3 numbers, from snapshot set {url}/snapshots/" in done.output
    for source in (url, tmp_path / "rows"):
        np.testing.assert_array_equal(dbelief.load_tables(source)["user"].rows(keys), served.read(keys))


def test_no_table_is_in_memory_twice(tmp_path: Path) -> None:
    served, count = Served(2), 150_000
    pushed(served, np.arange(count))
    run, bucket = made(tmp_path / "run", served), 36 * count // 9  # key, stamp, row, and the state of adagrad
    rows = 20 * count
    for form in ("safetensors", "parquet"):
        used = traced(lambda form=form: list(export_tables(run, form, tmp_path / form)), steady=True)  # type: ignore[misc]
        assert used.peak < 3.5 * bucket < rows
    loaded = traced(lambda: dbelief.load_tables(run))
    assert loaded.peak < rows + 3.5 * bucket
    assert len(loaded.given["user"]) == count
    keys = np.arange(count // 100)
    mapped = traced(lambda: dbelief.load_tables(tmp_path / "safetensors")["user"].rows(keys), steady=True)
    assert mapped.peak < rows / 10


@pytest.mark.parametrize("keys", [[0.5], [[1]], 3, ["a"]])
def test_keys_that_are_none(keys: Sequence[Any], tmp_path: Path) -> None:
    table = dbelief.load_tables(made(tmp_path / "run", Served(1)))["user"]
    assert table.rows([]).shape == (0, USER.width)
    with pytest.raises(ValueError, match=r"keys are .*, must be "):
        table.rows(keys)


def test_what_holds_no_rows_is_one_line(tmp_path: Path) -> None:
    run, nothing = made(tmp_path / "run", Served(1)), tmp_path / "nothing"
    nothing.mkdir()
    other = tmp_path / "other.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, other, {"job": "clicks"})
    torn = tmp_path / "torn"
    list(export_tables(run, "safetensors", torn))
    path = torn / "user.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    for wrong, says in [
        (nothing, "is neither a run folder with a job.yaml, such as runs/NAME, nor a folder or file of dbelief export"),
        (tmp_path / "not there", "is neither a run folder"),
        (other, "is no file of a table's rows, or a damaged one (KeyError('table'))"),
        (torn, "is no file of a table's rows, or a damaged one (SafetensorError("),
    ]:
        where = path if wrong == torn else wrong
        with pytest.raises(DataError, match=f"^{re.escape(f'{where}: {says}')}"):
            dbelief.load_tables(wrong)
    with pytest.raises(ValueError, match="unseen is 'mean', must be init or zero"):
        dbelief.load_tables(run, unseen="mean")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"^{tmp_path}/missing/rows: there is no folder {tmp_path}/missing$"):
        list(export_tables(run, "safetensors", tmp_path / "missing" / "rows"))
    (run / "snapshots").rename(run / "gone")
    with pytest.raises(UserError, match=r"run: holds no complete snapshot set, and rows of tables are in these alone$"):
        dbelief.load_tables(run)
    (run / "job.yaml").write_text(WITHOUT_TABLES)
    with pytest.raises(UserError, match=r"run: job digits has no tables$"):
        dbelief.load_tables(run)


def test_rows_of_another_form_than_the_jobs_are_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "run", Served(1))
    (run / "job.yaml").write_text((run / "job.yaml").read_text().replace("width: 3", "width: 4"))
    says = r"segment \d has .*rows of 3 by adagrad.*, and table 'user' has rows of 4 by its rule$"
    with pytest.raises(CorruptSnapshot, match=says):
        dbelief.load_tables(run)
