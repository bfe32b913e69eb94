"""Streams of LIBSVM and libffm text: against other parsers, unit by unit, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from dbelief.data.bags import LineStream, SparseBatch, read_libffm, read_libsvm
from dbelief.data.bags.libsvm import _scanned, parse_rows
from dbelief.data.files import contents
from dbelief.errors import DataError
from tests.traced import traced

TRAIN = "-1 3:0.5 1:2\n+1 2:-1e-1  # a_comment\n\n# nothing\n0\n 1 qid:7 9223372036854775807:1 -5:2.5\r\n"


def written(folder: Path, text: str, name: str = "t.svm") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def listed(batch: SparseBatch) -> dict[str, Any]:
    """The batch in plain lists; of each bag the rows of keys and values."""
    found: dict[str, Any] = {"labels": batch.labels.tolist(), "weights": batch.weights.tolist()}
    for name, bag in batch.bags.items():
        assert [own.dtype.name for own in (bag.keys, bag.offsets, bag.values)] == ["int64", "int64", "float32"]
        assert len(bag.offsets) == len(batch)
        parts = [np.split(own, bag.offsets[1:]) for own in (bag.keys, bag.values)]
        found[name] = [dict(zip(*(own.tolist() for own in pair), strict=True)) for pair in zip(*parts, strict=True)]
    return found


def test_labels_keys_and_values_are_as_in_the_file(tmp_path: Path) -> None:
    (batch,) = read_libsvm(written(tmp_path, "\ufeff" + TRAIN))
    assert batch.labels.dtype == batch.weights.dtype == np.float32
    assert listed(batch) == {
        "labels": [-1, 1, 0, 1],
        "weights": [1, 1, 1, 1],
        "features": [{3: 0.5, 1: 2}, {2: np.float32(-0.1)}, {}, {2**63 - 1: 1, -5: 2.5}],
    }


def test_features_are_split_by_field(tmp_path: Path) -> None:
    path = written(tmp_path, "1 2:7:1 0:5:0.5 2:8:3\n0 9:1:1\n1 0:-6:1\n", "t.ffm")
    (batch,) = read_libffm(path, fields=(2, 0, 4))
    assert listed(batch)["2"] == [{7: 1, 8: 3}, {}, {}]
    assert listed(batch)["0"] == [{5: 0.5}, {}, {-6: 1}]
    assert listed(batch)["4"] == [{}, {}, {}]
    (batch,) = read_libffm(path)
    assert listed(batch)["features"] == [{7: 1, 5: 0.5, 8: 3}, {1: 1}, {-6: 1}]


FEATURE = st.tuples(
    st.integers(-9, 10**18 - 1),
    st.one_of(st.integers(-9, 99), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 9)),
)
ROWS = st.lists(st.tuples(st.floats(-3, 3, width=16), st.lists(FEATURE, max_size=5)), min_size=1, max_size=8)
GAPS = st.sampled_from(["", "\n", "# 1:1 none\n", " \t\r\n"])


def text_of(rows: list[Any], gap: str, fielded: bool) -> str:
    def feature(field: int, key: int, value: float) -> str:
        return f"{field}:{key}:{value}" if fielded else f"{key}:{value}"

    return gap.join(f"{label} {' '.join(feature(*one) for one in row)}\n" for label, row in rows)


@given(ROWS, GAPS, st.booleans())
def test_compiled_loops_give_what_pythons_parsers_give(rows: list[Any], gap: str, fielded: bool) -> None:
    content = text_of(rows, gap, fielded).encode()
    expected = parse_rows(content, 1, fielded, "t")
    assert expected.labels.tolist() == [np.float32(label) for label, _ in rows]
    assert expected.keys.tolist() == [key for _, row in rows for _, key, _ in row]
    assert expected.values.tolist() == [np.float32(value) for _, row in rows for *_, value in row]
    assert expected.ends.tolist() == np.cumsum([len(row) for _, row in rows]).tolist()
    bare = text_of([("?" * (not row), row) for _, row in rows], gap, fielded).encode()
    without = parse_rows(bare, 1, fielded, "t", labelled=False)
    assert not without.labels.any()
    for one, other in zip(without[1:], expected[1:], strict=True):
        assert np.array_equal(one, other)
    for text, labelled, wanted in [(content, True, expected), (bare, False, without)]:
        if (found := _scanned(text, fielded, labelled)) is not None:
            for own, other in zip(found, wanted, strict=True):
                assert own.dtype == other.dtype
                assert np.array_equal(own, other)


def test_plain_text_is_read_by_compiled_loops() -> None:
    assert _scanned(b"-1 3:0.5 1:2\n0.25 -7:1e-3\n", False) is not None
    assert _scanned(b"1 1:3:0.5\n", True) is not None
    assert _scanned(b"3:0.5 1:2\n? -7:1e-3\n", False, labelled=False) is not None


def test_rows_are_those_of_scikit_learn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(-1, 2)} " + " ".join(f"{key}:{rng.normal():.6g}" for key in range(1, 1 + rng.integers(0, 9)))
        for _ in range(100)
    ]
    path = written(tmp_path, "\n".join(lines))
    expected, labels = load_svmlight_file(str(path), dtype=np.float32)
    batches = list(read_libsvm(path, size=30))
    assert [len(batch) for batch in batches] == [30, 30, 30, 10]
    whole = SparseBatch.joined(batches)
    bag = whole.bags["features"]
    assert np.array_equal(whole.labels, labels)
    assert np.array_equal(bag.keys - 1, expected.indices)
    assert np.array_equal(bag.offsets, expected.indptr[:-1])
    np.testing.assert_allclose(bag.values, expected.data, rtol=1e-7)


@given(ROWS, GAPS, st.integers(1, 4), st.integers(1, 50))
def test_units_are_the_batches_of_an_iteration(rows: list[Any], gap: str, size: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as name:
        patch.setattr(contents.blocks, "__defaults__", (block,))
        folder = Path(name)
        files = [written(folder, text_of(rows, gap, False), name) for name in ("a.svm", "b.svm")]
        stream = read_libsvm(folder, size)
        whole = [listed(batch) for batch in stream]
        assert [len(one["labels"]) for one in whole] == 2 * _sizes(len(rows), size)
        assert len(stream.units) == len(whole)
        assert stream.units[0].startswith(f"{files[0]}, lines 1 to ")
        for unit, expected in reversed(list(zip(stream.units, whole, strict=True))):
            (batch,) = stream.read(unit)
            assert listed(batch) == expected


def _sizes(rows: int, size: int) -> list[int]:
    return [min(size, rows - at) for at in range(0, rows, size)]


def test_a_compressed_file_has_no_units(tmp_path: Path) -> None:
    path = tmp_path / "t.svm.gz"
    path.write_bytes(gzip.compress(TRAIN.encode()))
    stream = read_libsvm(path, size=3)
    assert [len(batch) for batch in stream] == [3, 1]
    with pytest.raises(DataError, match=r"t\.svm\.gz: is compressed, and replicas read parts of files: unpack it"):
        _ = stream.units


def test_a_file_that_was_written_again_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, TRAIN)
    stream = read_libsvm(path, size=3)
    unit = stream.units[1]
    written(tmp_path, TRAIN + "1\n")
    with pytest.raises(DataError, match=r"t\.svm: was written again after the job began"):
        list(stream.read(unit))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 3", "'3' is not key:value"),
        ("1 3:", "value of '3:': '' is not a number"),
        ("1 3:x", "value of '3:x': 'x' is not a number"),
        ("1 3:1_0", "value of '3:1_0': '1_0' is not a number"),
        ("1 3:nan", "value of '3:nan': 'nan' is not a finite float32"),
        ("1 3:-inf", "value of '3:-inf': '-inf' is not a finite float32"),
        ("1 3:4e38", "value of '3:4e38': '4e38' is not a finite float32"),
        ("1 9223372036854775808:1", "key '9223372036854775808' has more than 64 bits"),
        ("1 -9223372036854775809:1", "key '-9223372036854775809' has more than 64 bits"),
        ("1 1.5:1", "key '1.5' is not a whole number"),
        ("1 :1", "key '' is not a whole number"),
        ("1 1:2:3", "'1:2:3' is not key:value"),
        ("yes 1:1", "label: 'yes' is not a number"),
        ("nan 1:1", "label: 'nan' is not a finite float32"),
        ("1:1 2:1", "label: '1:1' is not a number"),
    ],
)
def test_a_line_that_violates_the_format_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, "1 1:1\n# none\n" + line + "\n1 1:1\n")
    for stream in (iter(read_libsvm(path)), _second(read_libsvm(path, size=1))):
        with pytest.raises(DataError) as refused:
            list(stream)
        assert str(refused.value) == f"{path}, line 3: {message}"


def _second(stream: LineStream) -> Any:
    return stream.read(stream.units[1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 3:1", "'3:1' is not field:key:value"),
        ("1 9223372036854775808:1:1", "field '9223372036854775808' has more than 64 bits"),
        ("1 a:1:1", "field 'a' is not a whole number"),
        ("1 1:1:nan", "value of '1:1:nan': 'nan' is not a finite float32"),
    ],
)
def test_a_line_of_libffm_that_violates_the_format_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, line, "t.ffm")
    with pytest.raises(DataError) as refused:
        list(read_libffm(path))
    assert str(refused.value) == f"{path}, line 1: {message}"


def test_arguments_and_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^size is 0, must be 1 or more$"):
        read_libsvm(written(tmp_path, TRAIN), size=0)
    with pytest.raises(ValueError, match=r"^read_libffm: fields is empty; None reads all$"):
        read_libffm(written(tmp_path, TRAIN), fields=())
    with pytest.raises(DataError, match=r"none\.svm: no such file"):
        read_libsvm(tmp_path / "none.svm")
    with pytest.raises(DataError, match=r"t\.svm: has no rows$"):
        list(read_libsvm(written(tmp_path, "# nothing\n\n")))
    with pytest.raises(DataError, match=r"t\.svm: is empty$"):
        list(read_libsvm(written(tmp_path, "")))


def test_memory_is_that_of_a_batch_and_a_block(tmp_path: Path) -> None:
    path = written(tmp_path, "1 1:1 2:2 3:3\n" * 200_000)
    stream = read_libsvm(path, size=500)
    assert traced(lambda: sum(len(batch) for batch in stream), steady=True).peak < 5 << 18
    assert path.stat().st_size > 2 << 20
