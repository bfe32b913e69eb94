"""LIBSVM text, small files made here and a9a."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_files

from dbelief.core.sample_form import SampleForm
from dbelief.data import load, sizes
from dbelief.data.files.contents import blocks
from dbelief.data.files.data_file import DataFile, file_at
from dbelief.data.formats import libsvm
from dbelief.data.formats.libsvm import Rows, _parse, read_rows
from dbelief.data.formats.libsvm_rows import BlockParser
from dbelief.data.new_samples import read_samples
from dbelief.errors import DataError
from dbelief.job import LibsvmData
from tests.examples import examples
from tests.traced import traced

TRAIN = "-1 1:0.5 3:2\n+1 2:-1e-1  # a_comment\n\n# nothing\n-1\n+1 1:1 2:2 3:3\r\n"


def spec(folder: Path, train: str = TRAIN, test: str | None = None, **options: Any) -> LibsvmData:
    (folder / "t").write_text(train, encoding="utf-8", newline="")
    if test is not None:
        (folder / "v").write_text(test, encoding="utf-8")
    name = None if test is None else "v"
    return LibsvmData(source="libsvm", train="t", test=name, **{"validation": 0, **options})


def test_rows_stay_sparse_and_labels_count_from_zero(tmp_path: Path) -> None:
    data = load(spec(tmp_path, test="1 4:7\n"), tmp_path)
    assert data.train is not None
    assert data.test is not None
    assert data.validation is None
    assert (data.classes, data.features) == (2, (4,))
    expected = np.array([[0.5, 0, 2, 0], [0, -0.1, 0, 0], [0, 0, 0, 0], [1, 2, 3, 0]], np.float32)
    assert np.array_equal(data.train.inputs.dense(), expected)
    assert data.train.inputs.values.tolist() == [0.5, 2, np.float32(-0.1), 1, 2, 3]
    assert data.train.inputs.columns.dtype == np.int32
    assert data.train.targets.tolist() == [0, 1, 0, 1]
    assert data.test.inputs.dense().tolist() == [[0, 0, 0, 7]]
    assert data.test.targets.tolist() == [1]


def test_any_integers_are_classes_in_their_order(tmp_path: Path) -> None:
    data = load(spec(tmp_path, "30 1:1\n-7 1:2\n5.0 1:3\n-7 1:4\n"), tmp_path)
    assert data.train is not None
    assert data.train.targets.tolist() == [2, 0, 1, 0]
    assert data.classes == 3
    assert data.names == ("-7", "5", "30")


def test_the_width_is_the_same_whatever_is_needed(tmp_path: Path) -> None:
    job = spec(tmp_path, test="1 9:1\n")
    assert load(job, tmp_path, need=("train",)).features == load(job, tmp_path).features == (9,)
    given_width = spec(tmp_path, test="1 9:1\n", features=12, zero_based=False)
    (tmp_path / "v").unlink()
    assert load(given_width, tmp_path, need=("train",)).features == (12,)


@pytest.mark.parametrize("zero_based", ["auto", True])
@pytest.mark.parametrize(("train", "test"), [(0, 1), (1, 0), (0, 0), (1, 1)])
def test_indices_count_from_the_lowest_of_all_files(tmp_path: Path, zero_based: Any, train: int, test: int) -> None:
    """As scikit-learn's load_svmlight_files reads them; new samples are read as those of the training."""
    texts = [f"1 {first}:5 3:7\n0 {first}:2 # one\n" for first in (train, test)]
    data = load(spec(tmp_path, *texts, zero_based=zero_based), tmp_path)
    expected = load_svmlight_files([str(tmp_path / "t"), str(tmp_path / "v")], zero_based=zero_based)
    for split, name in ((data.train, 0), (data.test, 2)):
        assert split is not None
        assert np.array_equal(split.inputs.dense(), expected[name].toarray())
    assert data.form is not None
    form = SampleForm.parse(data.form.text)
    new = read_samples(tmp_path / "v", spec(tmp_path, *texts, zero_based=zero_based), form)
    assert data.test is not None
    assert np.array_equal(new.dense(), data.test.inputs.dense())
    if zero_based == "auto":
        only = load(spec(tmp_path, *texts), tmp_path, need=("train",))
        assert (only.features, only.zero_based) == (data.features, data.zero_based)


def test_queries_and_a_byte_order_mark_are_left_out(tmp_path: Path) -> None:
    text = "\ufeff1 qid:1 1:5 3:7\n0 qid:12 # none\n1 2:1_0\n0 qid:3 2:4\n"
    for content in (text.replace("1_0", "10"), text.replace("1_0", "1e-50")):  # compiled loops, and Python's parser
        job = spec(tmp_path, content)
        data = load(job, tmp_path)
        assert data.train is not None
        assert data.train.inputs.dense()[[0, 3]].tolist() == [[5, 0, 7], [0, 4, 0]]
        assert data.notes == (f"{tmp_path / 't'}: queries (qid:) are left out: samples are ranked by no query",)
        assert sizes(job, tmp_path) == (4, 0, 0)
    form = SampleForm((3,), 2, 2)
    (tmp_path / "new").write_text("qid:1 1:5\n1 qid:2 3:7\n")
    assert read_samples(tmp_path / "new", spec(tmp_path), form).dense().tolist() == [[5, 0, 0], [0, 0, 7]]


def test_a_gz_file_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "t.gz").write_bytes(gzip.compress(TRAIN.encode()))
    assert len(read_rows(file_at(tmp_path / "t.gz"), 1).labels) == 4
    whole = gzip.compress(b"1 1:1\n" * 200_000)
    (tmp_path / "t.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"t\.gz: the gzip file is cut short"):
        read_rows(file_at(tmp_path / "t.gz"), 1)


ROWS = st.lists(
    st.tuples(
        st.integers(-5, 5),
        st.dictionaries(st.integers(1, 30), st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=5),
    ),
    min_size=1,
    max_size=10,
)


@examples(50)
@given(ROWS)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, Any]]) -> None:
    lines = [" ".join([str(label), *(f"{i}:{v!r}" for i, v in sorted(values.items()))]) for label, values in rows]
    path = tmp_path_factory.mktemp("rows", numbered=True) / "t"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = read_rows(file_at(path), 1)
    assert found.labels.tolist() == [label for label, _ in rows]
    of_row = np.repeat(np.arange(len(rows)), np.diff(found.indptr))
    cells = dict(zip(zip(of_row.tolist(), found.columns.tolist(), strict=True), found.values.tolist(), strict=True))
    assert cells == {(row, i): v for row, (_, values) in enumerate(rows) for i, v in values.items()}


NUMBERS = st.one_of(
    st.floats(-(2.0**127), 2.0**127, width=32).map(repr),
    st.floats(-3e38, 3e38).map(repr),
    st.decimals(-1000, 1000, allow_nan=False, places=25).map(str),
    st.sampled_from(["1", "-0", "+1.5", ".5", "5.", "1e-46", "1E+3", "3.4028235677973365e38", "16777217", "0x", "1_0"]),
)
WORDS = st.one_of(
    st.tuples(st.integers(0, 40), NUMBERS).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    st.sampled_from(["qid:3", "+2:1", "3", "4:", "# 1:2", "4294967297:1", "1:nan"]),
)
LINES = st.tuples(
    st.sampled_from(["1", "-1", "+1", "2.0", "", "x", "1.5", "1e2", "12345678901234567"]),
    st.lists(WORDS, max_size=4),
    st.sampled_from(["\n", "\r\n", " \n", "\t # note_1\n", "\n\n"]),
)


@examples(300)
@given(st.lists(LINES, min_size=1, max_size=4), st.booleans(), st.sampled_from([0, 1]))
def test_compiled_loops_read_what_python_reads(
    lines: list[tuple[str, list[str], str]], labelled: bool, first: int
) -> None:
    """Each block that they parse is what the parser with the messages gives, to the bit; any other they leave."""
    block = "".join(" ".join([label, *words]) + end for label, words, end in lines).encode()
    found = BlockParser(labelled, first).parse(block)
    try:
        expected = _parse(block, 1, first, labelled, DataFile("t"))
    except DataError:
        assert found is None
        return
    if found is not None:
        for mine, other in zip(found, expected, strict=True):
            assert np.asarray(mine).dtype == np.asarray(other).dtype
            assert np.asarray(mine).tobytes() == np.asarray(other).tobytes()


def test_numbers_as_files_have_them_are_read_by_compiled_loops() -> None:
    """Labels, indices, and values of up to 17 digits, as NumPy and scikit-learn write them; comments, blank lines."""
    rng = np.random.default_rng(3)
    rows = [
        f"{n % 3 - 1} " + " ".join(f"{i}:{v!r}" for i, v in enumerate(rng.random(9).tolist(), 1)) for n in range(50)
    ]
    block = "\r\n".join([*rows, "", "# a_comment", "+1\t7:0.5 # end", "-1.00 8:1e-3"]).encode()
    found = BlockParser(True, 1).parse(block)
    assert found is not None
    assert found.ends[-1] == 50 * 9 + 2


@pytest.mark.parametrize("size", [1, 2, 7, 30, 1000])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_file_is_the_same_in_blocks_of_any_size(tmp_path: Path, size: int, end: str, monkeypatch: Any) -> None:
    text = TRAIN.strip() + "\n1 2000000000:1e-3 2147483647:{}\n0 7:1" + end
    (tmp_path / "t").write_text(text.format("1_5"), newline="")
    with pytest.raises(DataError, match="t, line 7, column 3: '2147483647:1_5' is not index:value"):
        read_in_blocks(monkeypatch, tmp_path / "t", size)
    (tmp_path / "t").write_text(text.format("1e-50"), newline="")
    found = read_in_blocks(monkeypatch, tmp_path / "t", size)
    assert found.labels.tolist() == [-1, 1, -1, 1, 1, 0]
    assert found.indptr.tolist() == [0, 2, 3, 3, 6, 8, 9]
    assert found.columns.tolist() == [1, 3, 2, 1, 2, 3, 2_000_000_000, 2_147_483_647, 7]


def test_a_file_that_grows_while_it_is_read_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "t").write_text("1 1:1\n0 2:1\n")
    for fewer in ((1, 2), (3, 1)):
        monkeypatch.setattr(libsvm, "_counted", lambda path, fewer=fewer: fewer)
        with pytest.raises(DataError, match="t: has changed while it was read"):
            read_rows(file_at(tmp_path / "t"), 1)


def read_in_blocks(monkeypatch: Any, path: Path, size: int) -> Rows:
    monkeypatch.setattr(libsvm, "blocks", lambda path: blocks(path, size))
    return read_rows(file_at(path), 1)


def test_memory_of_loading_is_at_most_twice_the_sparse_rows(tmp_path: Path, monkeypatch: Any) -> None:
    """Traced allocations while a set with 2^20 columns is loaded: an oracle that shares no code counts the file."""
    rng, rows, each = np.random.default_rng(1), 12_000, 60
    with open(tmp_path / "t", "w") as file:
        for row in range(rows):
            columns = np.unique(rng.integers(1, 1 << 20, each))
            file.write(f"{row % 2} " + " ".join(f"{column}:0.{column}" for column in columns.tolist()) + "\n")
    job = LibsvmData(source="libsvm", train="t", features=1 << 20)
    (tmp_path / "first").write_text("1 1:1\n")
    read_rows(file_at(tmp_path / "first"), 1)  # compiles
    content = (tmp_path / "t").read_bytes()
    sparse = 8 * content.count(b":") + 16 * content.count(b"\n")
    del content
    monkeypatch.setattr(libsvm, "blocks", lambda path: blocks(path, 1 << 15))  # the set has 6 MB only
    data, _, peak = traced(lambda: load(job, tmp_path))
    assert data.train is not None
    assert data.validation is not None
    assert sparse <= data.train.nbytes + data.validation.nbytes <= 1.05 * sparse
    assert peak <= 1.5 * sparse


WRONG: list[tuple[str, str | None, dict[str, Any], str]] = [
    ("", None, {}, "t: is empty"),
    ("# only\n\n", None, {}, "t: has no rows"),
    ("1 1:1\nx 1:1\n", None, {}, "t, line 2: 'x' is not a label"),
    ("1 1:1\n0.5 1:1\n", None, {}, "t, line 2: label '0.5' is not an integer"),
    ("nan 1:1\n", None, {}, "t, line 1: 'nan' is not a label"),
    ("inf 1:1\n", None, {}, "t, line 1: 'inf' is not a label"),
    ("1e300 1:1\n", None, {}, "t, line 1: label '1e300' is not an integer"),
    ("1 1:1\n\n0 3\n", None, {}, "t, line 3: '3' is not index:value"),
    ("1 1:\n", None, {}, "t, line 1: '1:' is not index:value"),
    ("1 1:2:3\n", None, {}, "t, line 1: '1:2:3' is not index:value"),
    ("1 1:1 qid:3\n", None, {}, "t, line 1: 'qid:3' is not index:value"),
    (
        "1 0:1\n",
        None,
        {"zero_based": False},
        "t, line 1: index '0' must be 1 or more: indices of this job count from 1 (data.zero_based)",
    ),
    ("1 -1:1\n", None, {}, "t, line 1: index '-1' must be above -1; indices ascend"),
    ("1 2:1 2:1\n", None, {}, "t, line 1: index '2' must be above 2"),
    ("1 1:1\n1_0 1:1\n", None, {}, "t, line 2, column 1: '1_0' is not a label"),
    ("1 1:1 1_1:25\n", None, {}, "t, line 1, column 3: '1_1:25' is not index:value"),
    ("1 1:2_5\n", None, {}, "t, line 1, column 2: '1:2_5' is not index:value"),
    ("1 3:1 2:1\n", None, {}, "t, line 1: index '2' must be above 3"),
    ("1 99999999999:1\n", None, {}, "t, line 1: index '99999999999' is larger than 2,147,483,647"),
    ("1 2147483648:1\n", None, {}, "t, line 1: index '2147483648' is larger than 2,147,483,647"),
    ("9007199254740993 1:1\n", None, {}, "t, line 1: label '9007199254740993' is not an integer of up to 2^53"),
    ("1 1:1\n0 1:nan\n", None, {}, "t, line 2: nan is not a finite float32"),
    ("1 1:1\n\n0 1:1 2:-inf\n", None, {}, "t, line 3: -inf is not a finite float32"),
    ("1 1:1\n0 1:1e39\n", None, {}, "t, line 2: 1e+39 is not a finite float32"),
    ("1 1:1\n0 5:1\n", None, {"features": 4}, "t: has index 5, but there are 4 features"),
    ("1 0:1\n0 5:1\n", None, {"features": 4}, "t: has index 5, but there are 4 features"),
    ("1\n0\n", None, {}, "t: has no features: all rows are empty"),
    ("7 1:1\n7 1:1\n", None, {}, "t: all training samples have the same label, 7"),
    ("1 1:1\n0 1:1\n", "2 1:1\n", {}, "v: label 2 is not in the training file"),
    ("1 1:1\n0 1:1\n", "", {}, "v: is empty"),
    ("1 1:1\n0 1:1\n", "1 5:1\n", {"features": 3}, "v: has index 5, but there are 3 features"),
    ("1 1:1\n0 1:1\n", None, {"validation": 1}, "t: of 2 samples, 1 for validation and 0 for test leave no sample"),
]


@pytest.mark.parametrize(("train", "test", "options", "words"), WRONG, ids=[row[3][:50] for row in WRONG])
def test_a_wrong_file_is_named_with_line_and_cause(
    tmp_path: Path, train: str, test: str | None, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError) as caught:
        load(spec(tmp_path, train, test, **options), tmp_path)
    assert str(caught.value).startswith(str(tmp_path / words))
    assert len(str(caught.value).splitlines()) == 1


def test_bytes_of_any_kind_are_refused_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"\xff\x00 \x01:\x02\n")
    with pytest.raises(DataError, match=r"line 1: .* is not a label$"):
        load(LibsvmData(source="libsvm", train="t"), tmp_path)


A9A = Path(os.environ.get("DBELIEF_DATA", "/nonexistent")) / "a9a"


@pytest.mark.skipif(not A9A.is_dir(), reason="DBELIEF_DATA names no folder that holds a9a")
def test_a9a_itself() -> None:
    job = LibsvmData(source="libsvm", train=str(A9A / "a9a"), test=str(A9A / "a9a.t"), validation=0)
    data = load(job, Path())
    assert data.train is not None
    assert data.test is not None
    assert (data.classes, data.features) == (2, (123,))
    assert np.bincount(data.train.targets).tolist() == [24_720, 7_841]
    assert np.bincount(data.test.targets).tolist() == [12_435, 3_846]
    assert set(np.unique(data.train.inputs.values)) == {1.0}
    # An oracle that shares no code: colons in the file, less the one explicit zero of a9a.t.
    assert int(data.train.inputs.values.sum()) == (A9A / "a9a").read_bytes().count(b":")
    assert int(data.test.inputs.values.sum()) == (A9A / "a9a.t").read_bytes().count(b":") - 1
