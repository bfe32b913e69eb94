"""Bags that are read unit by unit: the bits of the files in memory, each row once, and one line for what is bad."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.data import Dataset, Samples, load, sizes, sizes_and_units
from dbelief.data.bags.streamed.split import StreamedBags
from dbelief.errors import DataError
from dbelief.nn import NO_NUMBERS, BagRows, Batch, build_network
from dbelief.sparse.text_keys import text_keys
from dbelief.url import Url
from tests.dbelief.data.sources import DATA, copy

ROWS = 200
"""In two files, of which the second has a quarter."""
FORMATS: dict[str, dict[str, Any]] = {
    "libsvm": {},
    "libffm": {"columns": ["1", "0"]},
    "vw": {"columns": ["row", "item"]},
    "csv": {"label": "y", "ids": "row", "texts": "item"},
    "parquet": {"label": "y", "ids": "row", "texts": "item"},
}
WIDTHS = {"v": 3, "w": 1}


def write(folder: Path, name: str, rows: int = ROWS) -> None:
    """Rows whose first key is their number, in one file in `whole` and in two in `parts`; labels are -1, 0 and 1."""
    rng = np.random.default_rng(0)
    drawn: list[tuple[Any, ...]] = [
        (row, int(rng.integers(-1, 2)), rng.integers(0, 9, rng.integers(0, 4)).tolist()) for row in range(rows)
    ]
    for place, some in {"whole/a": drawn, "parts/a": drawn[: rows * 3 // 4], "parts/b": drawn[rows * 3 // 4 :]}.items():
        path = folder / f"{place}.{ {'libsvm': 'svm', 'libffm': 'ffm'}.get(name, name) }"
        path.parent.mkdir(exist_ok=True)
        if name == "parquet":
            import pyarrow
            from pyarrow import parquet

            labels, own, items = ([row[place] for row in some] for place in (1, 0, 2))
            texts = pyarrow.array([[f"i{one}" for one in bag] for bag in items], pyarrow.list_(pyarrow.string()))
            parquet.write_table(pyarrow.table({"y": labels, "row": own, "item": texts}), path, row_group_size=16)
        else:
            head = "y,row,item\n" if name == "csv" else ""
            path.write_text(head + "\n".join(line(name, *row) for row in some))


def line(name: str, row: int, label: int, items: list[int]) -> str:
    if name == "csv":
        return f"{label},{row},{f'i{items[0]}' if items else ''}" + "\n" * (row % 7 == 0)
    if name == "vw":
        return f"{label} |row {row} |item {' '.join(f'{one}:0.5' for one in items)}"
    at = ("", "") if name == "libsvm" else ("0:", "1:")
    comment = "\n# none" if row % 11 == 0 else ""
    return f"{label} {at[0]}{row}:1 {' '.join(f'{at[1]}{one}:{one / 4}' for one in items)}{comment}"


def section(name: str, **fields: Any) -> dict[str, Any]:
    streamed = {"streamed": True} | ({} if name == "parquet" else {"unit": 16})
    return {"source": "bags", "format": name, "files": "parts", **FORMATS[name], **streamed, **fields}


def opened(folder: Path, name: str, **fields: Any) -> Dataset:
    return load(DATA.validate_python(section(name, **fields)), folder)


def held(folder: Path, name: str) -> Samples:
    """All rows in memory, in their order."""
    train = opened(folder, name, files="whole", streamed=False, unit=None, validation=0, test=0).train
    assert train is not None
    return train


def epoch(samples: Samples, size: int, cuts: tuple[int, ...] = (), seed: int = 5) -> list[Batch]:
    """The mini-batches of an epoch that is leased in ranges between these places."""
    order, buffer = samples.order(seed, 0), samples.buffer(size)
    found = list[Batch]()
    for start, stop in pairwise(sorted({0, *cuts, len(samples)})):
        buffer.expect(order, start, stop)
        for first in range(start, stop, size):
            batch = samples.gather(order[first : min(first + size, stop)], buffer)
            found.append(Batch(batch.inputs, batch.targets.copy()))
    return found


def bits(batch: Batch) -> tuple[Any, ...]:
    columns = batch.inputs.columns
    return list(columns), batch.inputs.bits.tolist(), batch.targets.tolist()


def numbers(bags: BagRows, name: str) -> list[int]:
    """The numbers of rows in the file."""
    own = bags.columns["0" if name == "libffm" else "row" if name != "libsvm" else "features"]
    if name == "vw":
        names = {key: row for row, key in enumerate(text_keys([f"row^{row}" for row in range(ROWS)]).tolist())}
        return [names[key] for key in own.keys.tolist()]
    return [int(key) for key in own.keys[own.indptr[:-1]]]


def losses_and_gradients(samples: Samples, batches: list[Batch], columns: tuple[str, ...]) -> list[bytes]:
    """Bits of loss, gradients of parameters, and gradients of rows, of each mini-batch."""
    layers: list[Any] = [
        ("embedding_bag", {"table": "v", "columns": (), "join": "append", "mode": "mean"}),
        ("cross", {"layers": 1}),
        ("dense", {"units": 3}),
        ("fm", {"factors": "v", "linear": "w", "columns": (), "join": "append"}),
        ("dense", {"units": 3}),
    ]
    model = build_network(
        layers, "softmax_cross_entropy", features=NO_NUMBERS, outputs=3, backend=select_backend("cpu"), tables=WIDTHS,
        columns=columns,
    )  # fmt: skip

    def read(wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        places = np.arange(1, 4)
        return {
            table: np.sin(keys[:, np.newaxis] % 1009 * places[: WIDTHS[table]]).astype(np.float32)
            for table, keys in wanted.items()
        }

    model.attach(read)
    views = model.parameters(np.random.default_rng(1))
    found = list[bytes]()
    for batch in batches:
        out = {name: np.empty_like(value) for name, value in views.items()}
        loss = model.loss_and_gradient(views, batch, out)
        assert 0 < loss < np.inf
        found.append(np.float64(loss).tobytes())
        found += [gradient.tobytes() for gradient in out.values()]
        found += [array.tobytes() for pair in model.take_rows().values() for array in pair]
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_mini_batches_losses_and_gradients_are_those_of_memory_to_the_bit(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    data, whole = opened(tmp_path, name, validation=0, test=0, window=2), held(tmp_path, name)
    assert isinstance(data.train, StreamedBags)
    assert data.names == ("-1", "0", "1")
    assert len(data.train) == len(whole) == ROWS
    batches, order, buffer = epoch(data.train, 23), data.train.order(5, 0), whole.buffer(23)
    expected = []
    for first in range(0, ROWS, 23):
        batch = whole.gather(order[first : min(first + 23, ROWS)], buffer)
        expected.append(Batch(batch.inputs, batch.targets.copy()))
    assert [bits(batch) for batch in batches] == [bits(batch) for batch in expected]
    assert data.columns is not None
    one, other = (losses_and_gradients(whole, some, data.columns) for some in (batches, expected))
    assert one == other
    assert bits(Batch(data.train.inputs, data.train.targets)) == bits(Batch(whole.inputs, whole.targets))
    assert bits(Batch(data.train.head(40).inputs, data.train.head(40).targets)) == bits(
        Batch(whole.head(40).inputs, whole.head(40).targets)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_units_have_each_row_once(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    spec, data = DATA.validate_python(section(name)), opened(tmp_path, name)
    counted, units = sizes_and_units(spec, tmp_path)
    assert units is not None
    assert counted == sizes(spec, tmp_path)
    found = list[int]()
    for samples, count in zip((data.train, data.validation, data.test), counted, strict=True):
        assert samples is not None
        assert len(samples) == count > 0
        found += [row for batch in epoch(samples, 9) for row in numbers(batch.inputs, name)]
    assert sorted(found) == list(range(ROWS))
    assert sum(units.sizes) == counted[0]
    assert max(units.sizes) == 16, "units are as large as the job says"


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(0, 3000),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(0, 9),
)
def test_any_units_windows_and_leases_have_the_rows_of_the_order(
    unit: int, window: int, size: int, memory: int, cuts: list[int], seed: int
) -> None:
    """Of the windows in memory there is as much room as they need, or little more."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, "libsvm", 40)
        train = opened(folder, "libsvm", unit=unit, window=window, validation=0, test=0).train
        assert isinstance(train, StreamedBags)
        bytes_of = [train.source.bytes_of(place) for place in range(len(train.units.sizes))]
        least = sum(sorted(bytes_of)[-window:])
        tight = StreamedBags(train.source, train.units, least + memory)
        batches = epoch(tight, size, tuple(cuts), seed)
        rows = [row for batch in batches for row in numbers(batch.inputs, "libsvm")]
        assert rows == train.order(seed, 0)[0:40].tolist()
        assert [train.source.read(place).nbytes for place in range(len(bytes_of))] == bytes_of
        with pytest.raises(DataError, match=r"lines \d+ to \d+.* needs 1 MiB of memory, more than data.memory, 0"):
            StreamedBags(train.source, train.units, least - 1)


def test_units_without_a_size_are_a_40th(tmp_path: Path) -> None:
    write(tmp_path, "vw")
    _, units = sizes_and_units(DATA.validate_python(section("vw", unit=None, validation=0, test=0)), tmp_path)
    assert units is not None
    assert set(units.sizes) == {ROWS // 40}


def test_sets_with_files_of_their_own_and_objects_of_a_store(tmp_path: Path) -> None:
    write(tmp_path, "csv")
    prefix = Url(f"memory://{uuid.uuid4().hex}")
    copy(tmp_path, prefix)
    for base in (tmp_path, prefix):
        data = opened(tmp_path, "csv", files=f"{base}/parts/a.csv", test_files=[f"{base}/parts/b.csv"], validation=0)
        assert data.train is not None
        assert data.test is not None
        assert data.validation is None
        found = [row for batch in epoch(data.test, 9) for row in numbers(batch.inputs, "csv")]
        assert sorted(found) == list(range(150, 200))
        assert len(data.train) == 150


CLASSES = "is no whole number up to 2^24: labels are classes"
BAD: list[tuple[str, str, str, dict[str, Any]]] = [
    ("t.svm", "1 1:1\n# none\n\n0.5 1:1\n", f"{{}}, line 4: label 0.5 {CLASSES}", {}),
    ("t.svm", "1 1:1\n0 1:x\n", "{}, line 2: value of '1:x': 'x' is not a number", {}),
    ("t.vw", "1 |row a\n0 2.5 |row b\n", "{}, line 2: has weight 2.5, and the losses of layers have none", {}),
    ("t.csv", "y,row,item\n1,1,a\n\n1e9,2,b\n", f"{{}}, line 4: label 1e+09 {CLASSES}", {}),
    ("t.svm", "1 1:1\n1 2:1\n", "{}: all training samples have the same label, 1", {}),
    ("t.svm", "1 1:1\n0 1:1\n", "{}: of 1 units of 2 rows (data.unit), 1 for validation and 0 for the test leave none "
     "to train on: make them smaller, give data.validation_files and test_files, or set data.validation and test to 0",
     {"validation": 0.1}),
    ("t.svm", "", "{}: is empty", {}),
]  # fmt: skip


@pytest.mark.parametrize(("file", "text", "message", "fields"), BAD)
def test_bad_rows_are_named(file: str, text: str, message: str, fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    name = {"svm": "libsvm"}.get(end := file.partition(".")[2], end)
    with pytest.raises(DataError) as refused:
        opened(tmp_path, name, files=file, **{"validation": 0, "test": 0} | fields)
    assert str(refused.value) == message.format(tmp_path / file)


def test_other_labels_compressed_files_and_changed_files_are_named(tmp_path: Path) -> None:
    path, packed = tmp_path / "t.svm", tmp_path / "t.svm.gz"
    path.write_text("1 1:1\n0 1:1\n")
    (tmp_path / "held.svm").write_text("1 1:1\n7 1:1\n")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    none = {"validation": 0, "test": 0}
    with pytest.raises(DataError, match=r"held\.svm, lines 1 to 2: label 7 is in no training row$"):
        opened(tmp_path, "libsvm", files="t.svm", test_files="held.svm", validation=0)
    with pytest.raises(DataError, match=r"t\.svm\.gz: is compressed, .* unpack it"):
        opened(tmp_path, "libsvm", files="t.svm.gz", **none)
    assert held_rows(tmp_path) == 2, "in memory it is read"
    train = opened(tmp_path, "libsvm", files="t.svm", **none).train
    assert train is not None
    path.write_text("1 1:1\n0 1:1\n1 1:1\n")
    with pytest.raises(DataError, match=r"t\.svm: was written again after the job began$"):
        epoch(train, 2)


def held_rows(folder: Path) -> int:
    train = opened(folder, "libsvm", files="t.svm.gz", streamed=False, unit=None, validation=0, test=0).train
    return 0 if train is None else len(train)


def test_a_row_of_parquet_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    columns = {"y": [1, 0, 0.5], "row": [1, 2, 3], "item": ["a", "b", "c"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", row_group_size=2)
    with pytest.raises(DataError, match=r"t\.parquet, row group 1, row 0 \(from 0\): label 0\.5 is no whole number"):
        opened(tmp_path, "parquet", files="t.parquet", validation=0, test=0)
