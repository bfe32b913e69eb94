"""The kernels for a CUDA device, on the host: the same source, grid, addresses and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from dbelief.nn.kernels import Blocks, HostKernels
from dbelief.nn.kernels.batched_gemm import Math
from dbelief.nn.kernels.cuda import PARTS, KernelPart, choose_part
from dbelief.nn.kernels.device import REMEMBERED, DeviceKernels
from tests.dbelief.nn.kernels.cuda_on_host import ColumnsFirst, OnHost, array, products, rounded_products
from tests.dbelief.nn.kernels.operands import draw, shapes
from tests.examples import examples

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
@examples(25)
def test_small_and_odd_layers(shape: tuple[Blocks, int]) -> None:
    agree(*shape, OnHost())


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_every_part(part: KernelPart, backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16, of two the even one: by splitting, not by bits."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    rounded: np.ndarray = np.ldexp(np.rint(mantissa * 2**8) / 2**8, exponent).astype(np.float32)
    return rounded


@pytest.mark.parametrize(("depth", "neurons", "batch"), [(8, 16, 24), (4, 4, 8), (6, 4, 12)])
def test_operands_are_rounded_and_sums_are_not(depth: int, neurons: int, batch: int) -> None:
    """What is rounded beforehand has the very products; into the middle of longer rows, as `agree`."""
    blocks = Blocks(rows=4, columns=5, window=2, depth=depth, neurons=neurons)
    o = draw(blocks, batch, "float32")
    kernels, host = DeviceKernels(blocks, batch, OnHost(), rounded_products()), HostKernels(blocks, batch, F4)
    x, y, y_to = (_wide(values) for values in (o.x, o.y, np.full_like(o.y, np.nan)))
    w_to, middle = array(np.full_like(o.w, np.nan)), np.s_[..., batch : 2 * batch]
    for _ in range(2):
        kernels.forward(array(o.w), x[middle], y_to[middle])
        kernels.backward_weight(y[middle], x[middle], w_to)
    expected = np.empty_like(o.y), np.empty_like(o.w)
    host.forward(bf16(o.w), bf16(o.x), expected[0])
    host.backward_weight(bf16(o.y), bf16(o.x), expected[1])
    np.testing.assert_allclose(y_to[middle], expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(w_to, expected[1], rtol=1e-5, atol=1e-5)
    assert np.abs(expected[0] - _exact(blocks, batch, o)).max() > 1e-4, "and rounding is seen"


def _exact(blocks: Blocks, batch: int, o: Any) -> np.ndarray:
    y = np.empty(o.y.shape, F4)
    HostKernels(blocks, batch, F4).forward(o.w, o.x, y)
    return y


def test_offset_matrices_are_multiplied_in_place() -> None:
    blocks = Blocks(rows=3, columns=3, window=2, depth=3, neurons=5)
    o, blas = draw(blocks, 7, "float32"), ColumnsFirst()
    kernels = DeviceKernels(blocks, 7, OnHost(), rounded_products(blas))
    y = array(np.full_like(o.y, np.nan))
    kernels.forward(array(o.w), array(o.x), y)
    np.testing.assert_allclose(y, _exact(blocks, 7, o), rtol=1e-5, atol=1e-5)
    assert blas.used == [0]


def test_rounding_keeps_nan_and_infinity() -> None:
    blocks, device = Blocks(rows=1, columns=1, window=1, depth=1, neurons=8), OnHost()
    kernels = DeviceKernels(blocks, 8, device, rounded_products())
    values = np.array([np.nan, np.inf, -np.inf, 3.4e38, -0.0, 1e-45, 1.00390625, 1.01171875], np.float32)
    odd = values.view(np.uint32)
    odd[0] = 0x7F800001  # a NaN whose bits would all be cut off
    o = array(np.broadcast_to(values, (1, 1, 8, 8)).copy())
    kernels._rounded(o, 8, "y")
    found = (kernels._halves["y"][0, 0, 0].astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(found[0])
    np.testing.assert_array_equal(found[1:], np.array([np.inf, -np.inf, np.inf, -0.0, 0, 1.0, 1.015625], np.float32))


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
    assert choose_part(1, 1) == KernelPart(48, 96, 4, 2, 2, 3) or choose_part(1, 1) == KernelPart(64, 64)


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_parts_fit(part: KernelPart) -> None:
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
