"""Parquet: samples as pyarrow reads them, the same streamed and in memory; and one line for each kind of bad file."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbelief.data import Dataset, load, sizes, sizes_and_units
from dbelief.data.files import scan_cache
from dbelief.data.new_samples import read_samples
from dbelief.data.streams.streamed import StreamedSplit
from dbelief.errors import DataError
from dbelief.job import ParquetData

N = 60


def table(seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2)).astype(np.float32)
    return {"a": x[:, 0], "b": x[:, 1].astype(np.float64), "y": np.arange(N) % 3, **more}


def write(path: Path, columns: dict[str, Any], rows: int = 10) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows)
    return path


def spec(**fields: Any) -> ParquetData:
    defaults = {"source": "parquet", "files": "*.parquet", "kind": "classes", "target": "y"}
    return ParquetData.model_validate(defaults | fields)


def loaded(folder: Path, **fields: Any) -> Dataset:
    return load(spec(**fields), folder)


def refused(folder: Path, **fields: Any) -> str:
    with pytest.raises(DataError) as caught:
        loaded(folder, **{"streamed": False, **fields})
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(folder), "")


def test_sets_are_whole_row_groups_and_hold_each_row_once(tmp_path: Path) -> None:
    columns = [table(1), table(2)]
    for place, one in enumerate(columns):
        write(tmp_path / f"part-{place}.parquet", one)
    data = loaded(tmp_path)
    assert (data.classes, data.features, data.columns, data.names) == (3, (2,), ("a", "b"), None)
    sets = [one for one in (data.train, data.validation, data.test) if one is not None]
    assert [len(one) for one in sets] == [100, 10, 10] == list(sizes(spec(), tmp_path))
    found = np.concatenate([one.inputs for one in sets])
    expected = np.concatenate([np.stack([one["a"], one["b"]], axis=1) for one in columns]).astype(np.float32)
    assert np.array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])
    _, read_as = sizes_and_units(spec(), tmp_path)
    assert read_as is not None
    assert read_as.sizes == (10,) * 10


def test_streamed_and_in_memory_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", table(), rows=7)
    one, other = loaded(tmp_path, window=2).train, loaded(tmp_path, window=2, streamed=False).train
    assert isinstance(one, StreamedSplit)
    assert other is not None
    assert not isinstance(other, StreamedSplit)
    assert np.array_equal(one.inputs, other.inputs)
    assert np.array_equal(one.targets, other.targets)
    assert np.array_equal(one.order(3, 4)[0 : len(one)], other.order(3, 4)[0 : len(one)])


def test_validation_and_test_have_files_of_their_own(tmp_path: Path) -> None:
    for name in ("train", "held"):
        (tmp_path / name).mkdir()
    write(tmp_path / "train" / "x.parquet", table())
    write(tmp_path / "held" / "v.parquet", table(5))
    data = loaded(tmp_path, files="train", validation_files="held/v.parquet", test=0)
    assert [one and len(one) for one in (data.train, data.validation, data.test)] == [N, N, None]


def test_kinds_of_columns(tmp_path: Path) -> None:
    days = [datetime.date(1970, 1, 1) + datetime.timedelta(days=place) for place in range(N)]
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * N) % 251, pa.uint8()), 2)
    half = pa.array([None if place % 2 else place for place in range(N)], pa.int32())
    words = pa.array([["red", "green", None][place % 3] for place in range(N)]).dictionary_encode()
    columns = {"day": days, "half": half, "word": words, "flag": [place % 2 == 0 for place in range(N)]}
    write(tmp_path / "all.parquet", {**columns, "y": np.arange(N) % 2})
    data = loaded(tmp_path, categories="word", missing="zero", validation=0, test=0)
    assert data.train is not None
    assert data.columns == ("day", "half", "word=", "word=green", "word=red", "flag")
    expected = [
        [place, 0 if place % 2 else place, place % 3 == 2, place % 3 == 1, place % 3 == 0, place % 2 == 0]
        for place in range(N)
    ]
    assert np.array_equal(data.train.inputs, np.array(expected, np.float32))
    write(tmp_path / "all.parquet", {"image": pixels, "y": np.arange(N) % 2})
    images = loaded(tmp_path, scale=1 / 255, validation=0, test=0).train
    assert images is not None
    assert images.inputs.dtype == np.uint8
    assert images.inputs.tolist() == (np.arange(2 * N) % 251).reshape(-1, 2).tolist()
    batch = images.gather(np.arange(4), images.buffer(4))
    assert np.array_equal(batch.inputs, images.inputs[:4] * np.float32(1 / 255))


def test_lists_beside_columns_that_are_prepared(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    places = rng.normal(size=(N, 3)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(places.reshape(-1)), 3)
    own = {"word": ["x", "y"] * (N // 2), "place": lists, "y": np.arange(N) % 2}
    path = write(tmp_path / "a.parquet", own)
    fields: dict[str, Any] = {"categories": "word", "standardize": True, "validation": 0, "test": 0}
    data = loaded(tmp_path, **fields)
    assert data.columns == ("word=x", "word=y", "place[0]", "place[1]", "place[2]")
    assert data.train is not None
    assert data.form is not None
    expected = (places - places.mean(axis=0)) / places.std(axis=0)
    assert data.train.inputs[:, 2:] == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(read_samples(path, spec(**fields), data.form), data.train.inputs)


def test_targets_that_are_numbers_and_classes_that_are_texts(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", table(z=np.linspace(0, 1, N)))
    data = loaded(tmp_path, kind="regression", target=["z", "y"])
    assert data.train is not None
    assert data.train.targets.shape[1] == data.outputs == 2
    write(tmp_path / "all.parquet", table() | {"y": np.array(["no", "yes", "maybe"])[np.arange(N) % 3]})
    assert loaded(tmp_path).names == ("maybe", "no", "yes")


def test_statistics_are_those_of_the_training_rows_however_they_are_cut(tmp_path: Path) -> None:
    columns = table(a=pa.array([None if place % 4 == 0 else float(place) for place in range(N)]))
    states = []
    for rows in (7, 60):
        write(tmp_path / "all.parquet", columns, rows)
        data = loaded(tmp_path, missing="mean", standardize=True, validation=0, test=0)
        assert data.encoder is not None
        states.append(data.encoder["columns"][0])
        assert data.train is not None
        own = data.train.inputs.astype(np.float64)
        assert own.mean(axis=0) == pytest.approx(0, abs=1e-6)
        assert own.std(axis=0) == pytest.approx(1, rel=1e-6)
    for name in ("fill", "centre", "factor"):
        assert states[0][name] == pytest.approx(states[1][name], rel=1e-12)
    assert states[0]["fill"] == pytest.approx(np.mean([place for place in range(N) if place % 4]))


def test_a_scan_is_kept_until_the_files_or_the_question_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, scans = write(tmp_path / "all.parquet", table()), list[int]()
    real = scan_cache.scanned

    def counted(files: Any, asked: Any, scan: Any) -> Any:
        def noted() -> Any:
            scans.append(1)
            return scan()

        return real(files, asked, noted)

    monkeypatch.setattr("dbelief.data.streams.formats.parquet.scanned", counted)
    for fields in ({}, {}, {"window": 2}):
        loaded(tmp_path, **fields)
    assert len(scans) == 1
    loaded(tmp_path, standardize=True)
    assert len(scans) == 2
    write(path, table(9), rows=12)
    assert loaded(tmp_path).classes == 3
    assert len(scans) == 3


def test_new_samples_are_found_by_their_columns(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", table(word=["x", "y"] * (N // 2)))
    fields: dict[str, Any] = {"categories": "word", "standardize": True, "validation": 0, "test": 0}
    data = loaded(tmp_path, **fields)
    assert data.form is not None
    assert data.train is not None
    own = table(word=["x", "y"] * (N // 2))
    new = write(tmp_path / "new.pq", {name: own[name] for name in ("word", "b", "a")}, rows=11)
    assert np.array_equal(read_samples(new, spec(**fields), data.form), data.train.inputs)
    plain = loaded(tmp_path, ignore="word", validation=0, test=0)
    assert plain.form is not None
    assert plain.train is not None
    assert np.array_equal(read_samples(new, spec(ignore="word"), plain.form), plain.train.inputs)


def test_bad_files_are_named(tmp_path: Path) -> None:
    assert refused(tmp_path) == "/*.parquet: no file matches this pattern"
    assert "no such file" in refused(tmp_path, files="x.parquet")
    path = write(tmp_path / "a.parquet", table())
    assert "is named twice by the job's files" in refused(tmp_path, files=["a.parquet", "*.parquet"])
    assert "no column is called 'z' (data.target)" in refused(tmp_path, target="z")
    write(tmp_path / "b.parquet", table() | {"b": [str(place) for place in range(N)]})
    assert refused(tmp_path) == "/b.parquet: column 'b' is string, and in /a.parquet it is double"
    assert "column 'b' holds texts: list it in data.categories" in refused(tmp_path, files="b.parquet")
    write(tmp_path / "b.parquet", table(c=np.zeros(N)))
    assert refused(tmp_path) == "/b.parquet: has a column 'c', which /a.parquet has not"
    (tmp_path / "b.parquet").write_bytes(path.read_bytes()[:-9])
    assert refused(tmp_path).startswith("/b.parquet: is no Parquet data, or damaged: ")
    (tmp_path / "b.parquet").unlink()
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)
    assert refused(tmp_path, validation=0, test=0).startswith("/a.parquet, row group ")
    write(path, table(), rows=N)
    assert (
        "of 1 row groups (row_group_size of their writer), 1 for validation and 1 for the test leave none to train on"
        in refused(tmp_path)
    )


def test_bad_values_are_named(tmp_path: Path) -> None:
    path, none = tmp_path / "a.parquet", {"validation": 0, "test": 0}
    for column, message in (
        ([None, *range(N - 1)], "/a.parquet, row group 0, column 'a', row 0 (from 0): is missing; data.missing"),
        ([0.0] * 13 + [1e300] * (N - 13), "/a.parquet, row group 1, column 'a', row 3 (from 0): is infinite, or too"),
    ):
        write(path, table(a=pa.array(column, pa.float64())))
        assert refused(tmp_path, **none).startswith(message)
    write(path, table(y=pa.array([None, *[1] * (N - 1)], pa.int64())))
    assert refused(tmp_path, **none) == "/a.parquet, row group 0, column 'y', row 0 (from 0): a class is missing"
    write(path, table(word=[str(place) for place in range(N)]))
    assert "'word' has 10 values in the training rows, and data.vocabulary allows 9" in refused(
        tmp_path, categories="word", vocabulary=9, **none
    )
    write(path, table())
    write(tmp_path / "test.pq", table(y=[7] * N))
    wanted = "/test.pq, row group 0: class '7' is in no training row"
    assert refused(tmp_path, test_files="test.pq", validation=0) == wanted
    assert refused(tmp_path, validation_files="a.parquet", test=0) == (
        "/a.parquet: is among data.files too: no sample may be in two sets"
    )


def test_types_that_do_not_fit_are_named(tmp_path: Path) -> None:
    days = [datetime.datetime(2026, 1, 1)] * N
    write(tmp_path / "a.parquet", table(day=days, word=["x"] * N))
    only = {"ignore": ["word"]}
    assert (
        refused(tmp_path, kind="regression", target="word") == "/a.parquet: target 'word' is string, must hold numbers"
    )
    assert "target 'day' is timestamp" in refused(tmp_path, kind="regression", target="day", **only)
    assert "column 'a' is float, must be a date, or a text that is one" in refused(tmp_path, dates="a", **only)
    assert "column 'a' is float, must be a text or a whole number" in refused(tmp_path, categories="a", **only)
    data = loaded(tmp_path, ignore=["word", "day"])
    assert data.form is not None
    for columns, message in (
        ({"a": ["x"], "b": [1.0]}, r"new.pq: column 'a' is string, must be a number"),
        ({"a": [1.0]}, r"new.pq: no column is called 'b'"),
    ):
        new = write(tmp_path / "new.pq", columns)
        with pytest.raises(DataError, match=message):
            read_samples(new, spec(), data.form)


def test_a_file_that_is_written_again_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table())
    data = loaded(tmp_path)
    assert data.train is not None
    write(path, table(7))
    with pytest.raises(DataError, match=r"a.parquet: was written again after the job began"):
        data.train.gather(np.arange(3), data.train.buffer(3))


def test_classes_have_one_order(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table(y=["10", "2", "02", "1"] * (N // 4)))
    assert loaded(tmp_path).names == ("1", "02", "2", "10")
