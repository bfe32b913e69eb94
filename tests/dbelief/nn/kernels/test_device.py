"""The kernels for a CUDA device, on the host: the same source, grid, addresses and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from dbelief.nn.kernels import Blocks, HostKernels
from dbelief.nn.kernels.cuda import PARTS, Part, choose_part
from dbelief.nn.kernels.device import REMEMBERED, DeviceKernels
from dbelief.nn.kernels.products import Math
from tests.dbelief.nn.kernels.cuda_on_host import ColumnsFirst, OnHost, array, products
from tests.dbelief.nn.kernels.operands import draw, shapes

F4 = np.dtype(np.float32)


def agree(blocks: Blocks, batch: int, device: OnHost) -> None:
    """All kernels write what the host's do, into the middle of longer rows, and nothing beside them."""
    o = draw(blocks, batch, "float32")
    ours, theirs = DeviceKernels(blocks, batch, device, products()), HostKernels(blocks, batch, F4)
    w, (x, y, x_to, y_to) = array(o.w), map(_wide, (o.x, o.y, np.full_like(o.x, np.nan), np.full_like(o.y, np.nan)))
    w_to, norms = array(np.full_like(o.w, np.nan)), array(np.full(blocks.norms_shape, np.nan, F4))
    middle = np.s_[..., batch : 2 * batch]
    ours.forward(w, x[middle], y_to[middle])
    ours.backward_data(w, y[middle], x_to[middle])
    ours.backward_weight(y[middle], x[middle], w_to)
    ours.row_norms(w, norms)
    expected = np.empty_like(o.y), np.empty_like(o.x), np.empty_like(o.w), np.empty_like(norms, subok=False)
    theirs.forward(o.w, o.x, expected[0])
    theirs.backward_data(o.w, o.y, expected[1])
    theirs.backward_weight(o.y, o.x, expected[2])
    theirs.row_norms(o.w, expected[3])
    for found, wanted in zip((y_to[middle], x_to[middle], w_to, norms), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    for long in (x_to, y_to):
        assert (long[..., :batch] == 7).all()
        assert (long[..., 2 * batch :] == 7).all()


def _wide(values: np.ndarray) -> Any:
    """[..., 3 M]: the values between sevens."""
    return array(np.concatenate([np.full_like(values, 7), values, np.full_like(values, 7)], axis=-1))


@given(shapes())
@settings(max_examples=25)
def test_small_and_odd_layers(shape: tuple[Blocks, int]) -> None:
    agree(*shape, OnHost())


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_every_part(part: Part, backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one part in each direction, none of them full, and neurons that do not fill the last box."""
    monkeypatch.setattr("dbelief.nn.kernels.device.choose_part", lambda q, m: part)
    device = OnHost(backwards)
    agree(Blocks(rows=2, columns=3, window=2, depth=part.BQ + 4, neurons=37), part.BM + 8, device)
    assert {name for name, options in device.launched if "-DVECTOR=4" in options} == {"strips", "norms", "given"}


@pytest.mark.parametrize(("depth", "batch"), [(50, 60), (49, 64), (48, 63)])
def test_numbers_one_by_one_where_rows_are_not_aligned(depth: int, batch: int) -> None:
    device = OnHost()
    agree(Blocks(rows=3, columns=2, window=2, depth=depth, neurons=20), batch, device)
    assert ("given", "-DVECTOR=1") in {(name, o) for name, options in device.launched for o in options}


def test_weights_that_are_a_window_of_others() -> None:
    blocks, device = Blocks(rows=4, columns=5, window=2, depth=4, neurons=4), OnHost()
    o = draw(blocks, 8, "float32")
    part = Blocks(rows=3, columns=3, window=2, depth=4, neurons=4)
    kernels, whole = DeviceKernels(part, 8, device, products()), np.empty_like(o.y)
    HostKernels(blocks, 8, F4).forward(o.w, o.x, whole)
    for top, left in ((0, 1), (1, 1), (1, 2)):  # from the second on, lists of addresses are there already
        rows, columns = slice(top, top + 2), slice(left, left + 2)
        x, y = array(o.x[top : top + 3, left : left + 3]), array(np.full(part.y_shape(8), np.nan, F4))
        kernels.forward(array(o.w)[rows, columns], x, y)
        np.testing.assert_allclose(y, whole[rows, columns], rtol=1e-5, atol=1e-5)


def test_an_array_that_begins_between_vectors() -> None:
    blocks, device = Blocks(rows=3, columns=3, window=2, depth=4, neurons=4), OnHost()
    o = draw(blocks, 8, "float32")
    kernels, x, y = DeviceKernels(blocks, 8, device, products()), array(np.zeros((*o.x.shape[:-1], 16), F4)), array(o.y)
    kernels.backward_data(array(o.w), y, x[..., 1:9])
    kernels.backward_data(array(o.w), y, x[..., 8:])
    assert [options[-1] for _, options in device.launched] == ["-DVECTOR=1", "-DVECTOR=4"]
    np.testing.assert_array_equal(x[..., 1:8], x[..., 8:15])


@pytest.mark.parametrize(("math", "mode"), [("float32", 0), ("tf32", 3)])
def test_the_way_of_multiplying_is_set_and_put_back(math: Math, mode: int) -> None:
    blocks, blas = Blocks(rows=3, columns=3, window=2, depth=4, neurons=4), ColumnsFirst()
    o = draw(blocks, 8, "float32")
    kernels = DeviceKernels(blocks, 8, OnHost(), products(math, blas))
    kernels.forward(array(o.w), array(o.x), array(o.y))
    assert (blas.used, blas.mode) == ([mode], 5)


def test_addresses_are_made_once_and_not_kept_forever() -> None:
    blocks = Blocks(rows=3, columns=3, window=2, depth=4, neurons=4)
    o = draw(blocks, 8, "float32")
    kernels, w, x = DeviceKernels(blocks, 8, OnHost(), products()), array(o.w), array(o.x)
    outputs = [array(o.y) for _ in range(REMEMBERED)]
    kernels.forward(w, x, outputs[0])
    kept = dict(kernels._lists)
    kernels.forward(w, x, outputs[0])
    assert list(map(id, kernels._lists.values())) == list(map(id, kept.values()))
    for y in outputs:
        kernels.forward(w, x, y)
        assert len(kernels._lists) <= REMEMBERED
        np.testing.assert_array_equal(y, outputs[0])


def test_the_parts_of_the_paper() -> None:
    """48, 128 and 288 numbers a tile, batches of 96 and 128: nothing is computed beyond the tile."""
    for q in (48, 128, 288):
        for m in (96, 128):
            part = choose_part(q, m)
            assert (q % part.BQ, m % part.BM) == (0, 0)
    assert choose_part(1, 1) == Part(48, 96, 4, 2, 2, 3) or choose_part(1, 1) == Part(64, 64)


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_parts_fit(part: Part) -> None:
    assert part.threads % 32 == 0
    assert (part.BQ % (part.QV * part.QC), part.BM % (part.MV * part.MC)) == (0, 0)
    assert 4 * 3 * 16 * (part.BQ + part.BM) <= 48 * 1024


def test_wrong_arrays_are_refused_by_name() -> None:
    blocks = Blocks(rows=3, columns=3, window=2, depth=4, neurons=4)
    o = draw(blocks, 8, "float32")
    kernels = DeviceKernels(blocks, 8, OnHost(), products())
    with pytest.raises(ValueError, match=r"^x is float32 \(3, 3, 4, 7\)"):
        kernels.forward(o.w, o.x[..., :7], o.y)
    with pytest.raises(ValueError, match=r"^w is float64"):
        kernels.backward_data(o.w.astype(float), o.y, o.x)
    with pytest.raises(ValueError, match=r"^norms must be C-contiguous"):
        kernels.row_norms(o.w, np.empty((2, 2, 8), F4)[..., :4])
