from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from dbelief.checkpoint.safetensors_io import Tensor, dtype_name, write_model, write_tensors
from dbelief.core.layout import Box, Layout, SegmentSpan, make_segments
from dbelief.errors import RuntimeFailure, Unavailable
from dbelief.rundir.result import read_model
from tests.assembled import assembled

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([np.dtype("<f4"), np.dtype("<f8")])
names = st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda name: name != "__metadata__")
tables = st.dictionaries(names, st.tuples(dtypes, shapes), max_size=5)
WHOLE = Layout.of(
    {
        "w": np.zeros((7, 5), np.float32),
        "alpha": np.zeros((), np.float32),
        "none": np.zeros((0, 3), np.float32),
        "b": np.zeros(4, np.float32),
    }
)
OVER_TWO_RANKS = Layout(
    (
        Box("w", (4, 6), 0, (0, 0), (4, 2)),
        Box("b", (6,), 0, (0,), (6,)),
        Box("w", (4, 6), 1, (0, 2), (4, 6)),
        Box("scale", (), 1, (), ()),
    )
)


@given(table=tables, data=st.data())
def test_library_reads_tensors_written_in_any_order(
    table: dict[str, Tensor], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    random = np.random.default_rng(0)
    wanted = {name: random.standard_normal(shape).astype(dtype) for name, (dtype, shape) in table.items()}
    pieces = [(name, first) for name, values in wanted.items() for first in range(0, values.size, 3)]
    with write_tensors(path, table, {"job": "digits"}) as file:
        for name, first in data.draw(st.permutations(pieces)):
            file.write(name, wanted[name].reshape(-1)[first : first + 3], first)
    with safe_open(path, framework="numpy") as read:
        assert read.metadata() == {"job": "digits"}
        assert set(read.keys()) == set(wanted)
        for name, values in wanted.items():
            assert read.get_tensor(name).dtype == values.dtype
            assert np.array_equal(read.get_tensor(name), values)
    content = path.read_bytes()
    assert len(content) == file.size
    assert zlib.crc32(content[: file.size - sum(values.nbytes for values in wanted.values())]) == file.header_crc32
    for name, values in wanted.items():
        start = file.offset(name)
        assert content[start : start + values.nbytes] == values.tobytes()


def test_types_have_the_names_of_the_format() -> None:
    assert dtype_name(np.dtype(np.float32)) == "F32"
    assert dtype_name(np.dtype(np.float64)) == "F64"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def parts(layout: Layout, flat: np.ndarray, nominal: int) -> list[tuple[SegmentSpan, np.ndarray]]:
    return [(span, flat[span.start : span.stop]) for span in make_segments(layout.rank_ranges(), nominal)]


@pytest.mark.parametrize("layout", [WHOLE, OVER_TWO_RANKS], ids=["one rank", "two ranks"])
@pytest.mark.parametrize("nominal", [1, 3, 8, 1_000])
def test_the_file_holds_the_canonical_tensors(layout: Layout, nominal: int, path: Path) -> None:
    flat = np.random.default_rng(0).standard_normal(layout.size, dtype=np.float32)
    write_model(path, layout, parts(layout, flat, nominal), {"job": "digits"})
    loaded, wanted = load_file(path), assembled(layout, flat)
    assert loaded.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert loaded[name].dtype == np.float32
        assert loaded[name].shape == tensor.shape
        np.testing.assert_array_equal(loaded[name], tensor)
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"job": "digits"}


def test_a_tensor_of_two_names_is_there_under_both(path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    layout = Layout.of(tensors, {"a": ["c"]})
    flat = layout.flatten(tensors, np.empty(8, np.float32))
    spans = make_segments(layout.rank_ranges(), 5)
    write_model(path, layout, [(span, flat[span.start : span.stop]) for span in spans], {})
    held = load_file(path)
    assert held.keys() == {"a", "b", "c"}
    np.testing.assert_array_equal(held["c"], tensors["a"])
    found = np.zeros(8, np.float32)
    read_model(path, layout, found, path.parent)
    np.testing.assert_array_equal(found, flat)
    plain = Layout.of(tensors)  # a file of before tensors had further names
    write_model(path, plain, [(span, flat[span.start : span.stop]) for span in spans], {})
    read_model(path, layout, found, path.parent)


def test_the_numbers_begin_at_a_multiple_of_eight(path: Path) -> None:
    """Readers map the file into memory and want the tensors aligned."""
    for length in range(9):
        write_model(path, WHOLE, parts(WHOLE, np.zeros(WHOLE.size, np.float32), 9), {"job": "x" * length})
        content = path.read_bytes()
        header = int.from_bytes(content[:8], "little")
        assert header % 8 == 0
        assert json.loads(content[8 : 8 + header])["w"]["data_offsets"] == [0, 140]
        assert len(content) == 8 + header + 4 * WHOLE.size


def test_incomplete_file_never_gets_the_final_name(path: Path) -> None:
    flat = np.ones(WHOLE.size, np.float32)
    write_model(path, WHOLE, parts(WHOLE, flat, 8), {})
    before = path.read_bytes()

    def broken() -> Iterator[tuple[SegmentSpan, np.ndarray]]:
        yield from parts(WHOLE, 2 * flat, 8)[:2]
        raise Unavailable("the shard is gone")

    with pytest.raises(Unavailable):
        write_model(path, WHOLE, broken(), {})
    assert path.read_bytes() == before
    write_model(path, WHOLE, parts(WHOLE, 3 * flat, 8), {})
    np.testing.assert_array_equal(load_file(path)["b"], [3, 3, 3, 3])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("layout", [WHOLE, OVER_TWO_RANKS], ids=["one rank", "two ranks"])
@pytest.mark.parametrize("wrong", [lambda p: p[:-1], lambda p: p[1:], lambda p: p[:2] + p[3:], lambda p: [*p, p[-1]]])
def test_every_segment_has_to_come_once(layout: Layout, wrong: Callable[[Any], Any], path: Path) -> None:
    complete = parts(layout, np.ones(layout.size, np.float32), 3)
    with pytest.raises(
        RuntimeFailure, match=r"model\.safetensors: not written: the numbers from \d+ on did not come, or came"
    ):
        write_model(path, layout, wrong(complete), {})
    assert list(path.parent.iterdir()) == []
