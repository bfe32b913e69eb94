"""Samples with bags of keys that a job loads: the formats, the sets, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.data import load, sizes
from dbelief.data.bags import SparseBatch, read_csv, read_libffm, read_libsvm, read_vw
from dbelief.data.new_samples import read_samples
from dbelief.errors import DataError
from dbelief.nn import NO_NUMBERS, BagRows
from dbelief.sparse.text_keys import text_keys
from tests.dbelief.data.sources import DATA

ROWS = 60
BOTH = ["user", "item"]


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    users, items, labels = rng.integers(0, 9, ROWS), rng.integers(0, 5, (ROWS, 2)), np.arange(ROWS) % 2
    rows = list(zip(labels.tolist(), users.tolist(), items.tolist(), strict=True))
    (folder / "t.svm").write_text("".join(f"{2 * y - 1} {u}:1 {a}:0.5 {b}:2\n" for y, u, (a, b) in rows))
    (folder / "t.ffm").write_text("".join(f"{y} 0:{u}:1 1:{a}:0.5 1:{b}:2\n" for y, u, (a, b) in rows))
    (folder / "t.vw").write_text("".join(f"{y} |user {u} |item {a}:0.5 {b}:2\n" for y, u, (a, b) in rows))
    (folder / "t.csv").write_text("y,user,item\n" + "".join(f"{y},{u},i{a}\n" for y, u, (a, _) in rows))
    (folder / "test.csv").write_text("y,user,item\n1,3,i1\n0,-4,i2\n1,,i0\n")


FORMATS: dict[str, dict[str, Any]] = {
    "libsvm": {"files": "t.svm"},
    "libffm": {"files": "t.ffm", "columns": ["1", "0"]},
    "vw": {"files": "t.vw", "columns": BOTH},
    "csv": {"files": "t.csv", "label": "y", "ids": "user", "texts": "item", "test_files": "test.csv"},
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_sets_have_the_bags_of_the_stream(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    spec = DATA.validate_python({"source": "bags", "format": name, **FORMATS[name]})
    data = load(spec, tmp_path)
    assert data.train is not None
    assert data.validation is not None
    assert data.test is not None
    made = [len(data.train), len(data.validation), len(data.test)]
    assert made == ([54, 6, 3] if name == "csv" else [48, 6, 6])
    assert sizes(spec, tmp_path) == tuple(made)
    assert (data.classes, data.features) == (2, NO_NUMBERS)
    assert data.names == (("-1", "1") if name == "libsvm" else None)
    file, batches = tmp_path / FORMATS[name]["files"], list[SparseBatch]()
    if name == "csv":
        batches += read_csv(file, "y", ["user"], ["item"], size=7)
    elif name == "vw":
        batches += read_vw(file, BOTH, 7)
    else:
        batches += read_libsvm(file, 7) if name == "libsvm" else read_libffm(file, (1, 0), 7)
    assert data.columns == tuple(batches[0].bags)
    stored = data.train.stored  # type: ignore[attr-defined]
    for column, own in stored.columns.items():
        assert own.keys.tolist() == [key for batch in batches for key in batch.bags[column].keys.tolist()]
        assert own.values.tolist() == [value for batch in batches for value in batch.bags[column].values.tolist()]
    sets: list[Any] = [data.train, data.validation, data.test]
    held = [split for split in sets if split.stored is stored]
    rows = np.concatenate([split.rows for split in held])
    assert sorted(rows.tolist()) == list(range(ROWS))
    labels = np.concatenate([batch.labels for batch in batches]) > 0
    assert (np.concatenate([split.targets for split in held]) == labels[rows]).all()


def test_mini_batches_have_bags_and_labels_of_their_samples(tmp_path: Path) -> None:
    write(tmp_path)
    test = load(DATA.validate_python({"source": "bags", "format": "csv", **FORMATS["csv"]}), tmp_path, ["test"]).test
    assert test is not None
    batch = test.gather(np.array([2, 1, 1]), test.buffer(4))
    assert batch.targets.tolist() == [1, 0, 0]
    assert isinstance(batch.inputs, BagRows)
    assert batch.inputs.shape == (3, 0)
    user, item = batch.inputs.columns["user"], batch.inputs.columns["item"]
    assert (user.indptr.tolist(), user.keys.tolist()) == ([0, 0, 1, 2], [-4, -4])
    assert item.keys.tolist() == text_keys(["i0", "i2", "i2"]).tolist()
    assert test.head(1).inputs.columns["user"].keys.tolist() == [3]
    with pytest.raises(ValueError, match="index 3 is out of range"):
        test.gather(np.array([3]), test.buffer(4))


@pytest.mark.parametrize("name", [*FORMATS, "parquet"])
@pytest.mark.parametrize("labelled", [True, False])
def test_new_samples_have_the_bags_of_the_stream_with_labels_or_without(
    name: str, labelled: bool, tmp_path: Path
) -> None:
    write(tmp_path)
    text = "csv" if name == "parquet" else name
    like, spec = (DATA.validate_python({"source": "bags", "format": one, **FORMATS[text]}) for one in (text, name))
    expected, file = load(like, tmp_path), tmp_path / FORMATS[text]["files"]
    if not labelled:
        cut = "," if text == "csv" else " "
        file.write_text("".join(line.partition(cut)[2] for line in file.read_text().splitlines(keepends=True)))
    if name == "parquet":
        pytest.importorskip("pyarrow")
        from pyarrow import csv, parquet

        table, file = csv.read_csv(file), file.with_suffix(".parquet")
        parquet.write_table(table, file)
    assert expected.form is not None
    assert expected.train is not None
    found = read_samples(file, spec, expected.form)
    assert len(found) == ROWS
    for column, own in expected.train.stored.columns.items():  # type: ignore[attr-defined]
        bag = found.bags[column]
        assert bag.keys.tolist() == own.keys.tolist()
        assert bag.values.tolist() == own.values.tolist()
        assert bag.offsets.tolist() == own.indptr[:-1].tolist()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.svm", "0.5 1:1\n1 2:1\n", r"t\.svm, line 1: label 0\.5 is no whole number up to 2\^24: labels are classes"),
        ("t.svm", "1 1:1\n1 2:1\n", "all training samples have the same label, 1"),
        ("t.vw", "1 2.5 |user a\n0 |user b\n", r"t\.vw, line 1: has weight 2\.5, and the losses of layers have none"),
        ("test.csv", "y,user,item\n7,1,a\n", r"test\.csv: label 7 is in no training row"),
        ("t.csv", "y,user\n1,1\n", "t.csv.*'item'"),
    ],
)
def test_what_layers_cannot_train_on_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / name).write_text(text)
    kind = {"svm": "libsvm"}.get(suffix := name.partition(".")[2], suffix)
    with pytest.raises(DataError, match=message):
        load(DATA.validate_python({"source": "bags", "format": kind, **FORMATS[kind]}), tmp_path)
