from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from dbelief.checkpoint.tensors import Tensor, dtype_name, write_tensors

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([np.dtype("<f4"), np.dtype("<f8")])
names = st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda name: name != "__metadata__")
tables = st.dictionaries(names, st.tuples(dtypes, shapes), max_size=5)


@given(table=tables, data=st.data())
def test_the_library_reads_what_is_written_in_any_order(
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
