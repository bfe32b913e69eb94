"""Mistakes put into the product's own device path: the stand-in finds each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.arrays.push_source import DeviceSource
from dbelief.core.layout import Layout
from dbelief.data import Split
from dbelief.evaluation.evaluate import evaluate_groups
from dbelief.nn import Batch, build_network
from dbelief.nn.kernels import Blocks, make_kernels
from dbelief.nn.kernels.batched_gemm import Matrices
from dbelief.nn.kernels.device import DeviceKernels
from dbelief.optim.gradients import check_finite
from dbelief.training.elastic_weights import ElasticWeights
from dbelief.training.parameter_buffer import ParameterBuffer
from tests.device.jobs import DENSE, Example, by
from tests.device.standin.cupy import modules, standing_in
from tests.device.standin.machine import Machine
from tests.device.standin.order import DeviceMistake
from tests.device.standin.products import Blas
from tests.worker.comm.collectives.ways import any_numbers, ways
from worker.comm import Communicator, run_ranks
from worker.comm.threads import Group

RANGES = [(0, 100), (100, 200), (200, 300), (300, 350)]
LAYERS: Any = [("dense", {"units": 8}), ("relu", {}), ("dense", {"units": 3})]
BLOCKS = Blocks(rows=3, columns=3, window=2, depth=4, neurons=4)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Two devices that work as late as they may; mistakes on them are what is wanted."""
    with standing_in(devices=2, eagerness=0.0) as machine:
        yield machine
        machine.order.mistakes.clear()


@pytest.fixture
def cuda(machine: Machine) -> Backend:
    return select_backend("cuda")


def sent(source: DeviceSource) -> np.ndarray:
    """What a push sends."""
    return np.concatenate([block.copy() for block in source.blocks(RANGES)])


def gradient(xp: Any) -> tuple[Any, np.ndarray]:
    """350 numbers on the device, still being computed, and what they will be."""
    host = np.random.default_rng(0).standard_normal(350, dtype=np.float32)
    return xp.multiply(xp.asarray(host), np.float32(2)), host * 2


def fetched(backend: Backend) -> ParameterBuffer:
    """Parameters that came for a model."""
    network = build_network(LAYERS, "softmax_cross_entropy", features=5, outputs=3, backend=backend)
    layout = Layout.of(network.parameters(np.random.default_rng(0)))
    copy = ParameterBuffer.make(layout.part(0), 1, backend)
    copy.host[:] = np.random.default_rng(1).standard_normal(layout.size, dtype=np.float32)
    return copy


def step(backend: Backend, copy: ParameterBuffer, batch: Batch) -> float:
    """A step of that model."""
    network = build_network(LAYERS, "softmax_cross_entropy", features=5, outputs=3, backend=backend)
    copy.to_device()
    out = {name: backend.xp.empty(view.shape, np.float32) for name, view in copy.views.items()}
    return network.loss_and_gradient(copy.views, batch, out)


def samples(backend: Backend) -> Batch:
    rng = np.random.default_rng(2)
    inputs, targets = rng.standard_normal((6, 5), dtype=np.float32), rng.integers(0, 3, 6)
    return Batch(backend.to_device(inputs), backend.to_device(targets))


def beside(self: ParameterBuffer) -> None:
    self.device.set(self.host, stream=select_backend("cuda").xp.cuda.Stream(non_blocking=True))


def test_without_a_mistake_none_is_found(cuda: Backend, machine: Machine) -> None:
    values, expected = gradient(cuda.xp)
    np.testing.assert_array_equal(sent(DeviceSource(cuda.xp, values)), expected)
    assert np.isfinite(step(cuda, fetched(cuda), samples(cuda)))
    assert not machine.order.mistakes
    assert machine.stalls == 0


def test_a_missing_get(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_network(LAYERS, "softmax_cross_entropy", features=5, outputs=3, backend=cuda)
    labels = np.array([0, 1, 0, 1])
    split = Split(np.ones((4, 5), np.float32), labels, groups=labels)
    views = fetched(cuda).views
    assert evaluate_groups(network, views, split, cuda) is not None
    monkeypatch.setattr(Backend, "to_host", lambda self, array: array)
    with pytest.raises(TypeError, match="returned NotImplemented"):
        evaluate_groups(network, views, split, cuda)


def test_an_implicit_conversion(cuda: Backend) -> None:
    values, _ = gradient(cuda.xp)
    with pytest.raises(TypeError, match=r"Please use `\.get\(\)`"):
        np.linalg.norm(np.asarray(values))


def test_a_mini_batch_that_stayed_on_the_host(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "to_device", lambda self, array: array)
    batch = samples(cuda)
    monkeypatch.undo()
    with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy\.ndarray'>"):
        step(cuda, fetched(cuda), batch)


def test_a_missing_synchronisation(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    values, expected = gradient(cuda.xp)
    fetch, over = DeviceSource._fetch, SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(DeviceSource, "_fetch", lambda *arguments: (fetch(*arguments)[0], over))
    assert not np.array_equal(sent(DeviceSource(cuda.xp, values)), expected)


def test_a_missing_synchronisation_between_ranks(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank on a device of its own: nothing but the host's waiting orders one's copy and the other's kernel."""
    monkeypatch.setattr(Group, "settle", lambda self: None)

    def rank(comm: Communicator) -> None:
        cuda.bind_device(comm.rank)
        array = cuda.to_device(any_numbers(comm.rank, 101))
        next(ways()).make(comm, 101)(array)

    with pytest.raises(DeviceMistake, match="nothing orders them"):
        run_ranks(2, rank, 30.0, xp=cuda.xp)


@pytest.mark.parametrize("eagerness", [0.5, 1.0])
def test_a_buffer_that_is_used_before_its_copy_is_over(eagerness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One buffer in place of two: the next block comes into it while this one is sent."""
    with standing_in(eagerness=eagerness):
        xp = select_backend("cuda").xp
        values, expected = gradient(xp)
        monkeypatch.setattr(DeviceSource, "_pinned", cache(DeviceSource._pinned))
        assert not np.array_equal(sent(DeviceSource(xp, values)), expected)


def test_early_reuse_of_a_host_buffer_is_found() -> None:
    """A device that reads pageable memory itself, where a driver does not stage it."""
    with standing_in(eagerness=0.0, staged=False):
        backend = select_backend("cuda")
        copy = fetched(backend)
        expected = copy.host.copy()
        copy.to_device()
        copy.host[:] = 0  # the next fetch
        assert not np.array_equal(copy.device.get(), expected)


def test_a_default_stream_beside_another_one(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event that the copies wait for is of before the gradient was computed."""
    xp, host = cuda.xp, np.ones(350, np.float32)
    values = xp.asarray(host)
    source = DeviceSource(xp, values)
    xp.multiply(values, np.float32(3), out=values)
    with pytest.raises(DeviceMistake, match="reads what stream 1 wrote, and nothing orders them"):
        sent(source)


def test_read_of_another_streams_write_is_found(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParameterBuffer, "to_device", beside)
    with pytest.raises(DeviceMistake, match="and nothing orders them"):
        step(cuda, fetched(cuda), samples(cuda))


def test_an_event_that_was_never_recorded(cuda: Backend) -> None:
    values, _ = gradient(cuda.xp)
    source = DeviceSource(cuda.xp, values)
    source._ready = cuda.xp.cuda.Event()
    with pytest.raises(DeviceMistake, match="never recorded"):
        sent(source)


def test_memory_of_another_device(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a push thread that was begun by a rank on the second device: it is on the first one."""
    with cuda.xp.cuda.Device(1):
        values, expected = gradient(cuda.xp)
    layout = Layout.of({"w": expected})
    assert check_finite(values, layout) == pytest.approx(np.linalg.norm(expected))
    monkeypatch.setattr("dbelief.optim.gradients.on_device_of", lambda array: nullcontext())
    with pytest.raises(ValueError, match="array device = 1 while current = 0"):
        check_finite(values, layout)


def test_a_kernel_on_the_stream_of_another_device(cuda: Backend) -> None:
    with cuda.xp.cuda.Device(1):
        stream = cuda.xp.cuda.Stream(non_blocking=True)
    with stream, pytest.raises(DeviceMistake, match="its stream is device 1's"):
        cuda.xp.zeros(3, np.float32)


def test_pageable_memory_where_pinned_is_meant(
    cuda: Backend, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceSource, "_pinned", lambda self, length: np.empty(length, np.float32))
    values, expected = gradient(cuda.xp)
    np.testing.assert_array_equal(sent(DeviceSource(cuda.xp, values)), expected)
    assert machine.stalls == len(RANGES)


@pytest.fixture
def operands(cuda: Backend) -> list[Any]:
    """Weights, inputs and outputs of a block-local layer."""
    shapes = BLOCKS.w_shape, BLOCKS.x_shape(8), BLOCKS.y_shape(8)
    return [cuda.to_device(np.ones(shape, np.float32)) for shape in shapes]


def test_a_host_pointer_in_a_kernel(cuda: Backend, operands: list[Any]) -> None:
    kernels: Any = make_kernels(BLOCKS, 8, cuda)
    w, norms = operands[0].get(), cuda.xp.empty(BLOCKS.norms_shape, np.float32)
    with pytest.raises(DeviceMistake, match="argument 0 is no array of a device: ndarray"):
        kernels._run("norms", 1, 256, (w, norms), (np.int64(norms.size), BLOCKS.fan_in), vector=1)


def test_host_pointers_in_a_list_of_matrices(
    cuda: Backend, operands: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_host(self: DeviceKernels, array: Any, row: int, which: str) -> Matrices:
        host = array.get()
        kept.append(host)
        starts = self._starts(which, row * array.itemsize, array.strides, array.itemsize).ravel()
        return Matrices(cuda.to_device((starts + host.ctypes.data).astype(np.uint64)), row)

    kept: list[np.ndarray] = []
    monkeypatch.setattr(DeviceKernels, "_list", of_host)
    make_kernels(BLOCKS, 8, cuda).backward_weight(operands[2], operands[1], operands[0])
    with pytest.raises(DeviceMistake, match="which is no device's memory"):
        operands[0].get()


def test_a_list_of_matrices_that_lies_on_the_host(cuda: Backend, operands: list[Any]) -> None:
    addresses = np.zeros(4, np.uint64)
    here = SimpleNamespace(data=SimpleNamespace(ptr=addresses.ctypes.data), __len__=lambda: 4)
    kernels: Any = make_kernels(BLOCKS, 8, cuda)
    c = kernels._list(operands[2], 8, "y")
    with pytest.raises(DeviceMistake, match="a list of matrices is at"):
        kernels._multiply(4, 8, 4, Matrices(here, 4), c, c)


def test_a_product_that_runs_past_its_array(
    cuda: Backend, operands: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = DeviceKernels._starts
    monkeypatch.setattr(DeviceKernels, "_starts", lambda *arguments: starts(*arguments) + 4096)
    make_kernels(BLOCKS, 8, cuda).backward_weight(operands[2], operands[1], operands[0])
    with pytest.raises(DeviceMistake, match="which is no device's memory"):
        operands[0].get()


def test_numbers_that_were_never_written(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken for zeros is what lay there before."""
    monkeypatch.setattr(Backend, "zeros", lambda self, n, allocate: self.xp.empty(n, np.float32))
    part = Layout.of({"w": np.zeros(10, np.float32)}).part(0)
    own: Any = ElasticWeights(SimpleNamespace(), part, cuda)
    assert not np.isfinite(own.values.get()).any()


def test_a_whole_job_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as on a device, to an end that looks good."""
    monkeypatch.setattr(ParameterBuffer, "to_device", beside)
    example = Example(DENSE, by("downpour", warm_start="null"))
    with pytest.raises(AssertionError, match="nothing orders them"), standing_in(halts=False):
        example.run(tmp_path / "device", monkeypatch, "cuda")


def test_missing_cupy_function_is_named() -> None:
    machine = Machine()
    cupy: Any = modules(machine, Blas(machine))["cupy"]
    with pytest.raises(AttributeError, match=r"the stand-in for CuPy has no cupy\.einsum"):
        cupy.einsum("ij,jk", 1, 2)
    with pytest.raises(AttributeError, match=r"no cupy\.cuda\.graph"):
        _ = cupy.cuda.graph
