"""The stand-in for CuPy itself: what streams promise, and what they do not; and that CuPy has all that it has."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from tests.device.standin.cupy import modules, standing_in
from tests.device.standin.machine import Machine, Module
from tests.device.standin.order import DeviceMistake
from tests.device.standin.products import Blas


@pytest.fixture(params=[(0, 0.0), (1, 0.3), (2, 1.0)], ids=["late", "between", "at once"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    seed, eagerness = request.param
    with standing_in(devices=2, seed=seed, eagerness=eagerness) as machine:
        yield machine


@pytest.fixture
def xp(machine: Machine) -> Any:
    return select_backend("cuda").xp


def test_a_stream_keeps_its_order(xp: Any) -> None:
    array = xp.zeros(4, np.float32)
    for number in range(1, 6):
        array += np.float32(number)
        array *= np.float32(2)
    expected = np.zeros(4, np.float32)
    for number in range(1, 6):
        expected = (expected + number) * 2
    np.testing.assert_array_equal(array.get(), expected)


def test_an_event_orders_two_streams(xp: Any) -> None:
    array, stream = xp.full(8, 3, np.float32), xp.cuda.Stream(non_blocking=True)
    array *= np.float32(2)
    stream.wait_event(xp.cuda.get_current_stream().record())
    with stream:
        array += np.float32(1)
        after = stream.record()
    xp.cuda.get_current_stream().wait_event(after)
    array *= np.float32(10)
    np.testing.assert_array_equal(array.get(), np.full(8, 70, np.float32))


def test_the_default_stream_orders_those_that_block(xp: Any) -> None:
    array, stream = xp.full(8, 3, np.float32), xp.cuda.Stream()
    with stream:
        array += np.float32(1)
    array *= np.float32(10)
    with stream:
        array += np.float32(2)
    np.testing.assert_array_equal(array.get(), np.full(8, 42, np.float32))


def test_asynchronous_copy_is_complete_after_synchronize(xp: Any) -> None:
    stream = xp.cuda.Stream(non_blocking=True)
    host = np.frombuffer(xp.cuda.alloc_pinned_memory(4 * 6), np.float32, 6)
    assert np.isnan(host).all()
    array = xp.arange(6, dtype=np.float32)
    stream.wait_event(xp.cuda.get_current_stream().record())
    array.get(stream=stream, out=host, blocking=False)
    stream.synchronize()
    np.testing.assert_array_equal(host, np.arange(6, dtype=np.float32))


def test_pinned_memory_that_cupy_has_freed_may_be_written_on_any_stream(xp: Any) -> None:
    """CuPy frees the pinned memory of `asarray` once its event has passed, so its next user needs no event."""
    array, stream = xp.arange(6, dtype=np.float32), xp.cuda.Stream(non_blocking=True)
    xp.cuda.get_current_stream().synchronize()
    for number in range(20):
        sent = xp.asarray(np.full(6, number, np.float32))
        host = np.frombuffer(xp.cuda.alloc_pinned_memory(4 * 6), np.float32, 6)
        array.get(stream=stream, out=host, blocking=False)
        stream.synchronize()
        np.testing.assert_array_equal(host, np.arange(6, dtype=np.float32))
        np.testing.assert_array_equal(sent.get(), np.full(6, number, np.float32))


def test_memory_that_is_free_is_given_again_and_counted(machine: Machine, xp: Any) -> None:
    array = xp.ones(1000, np.float32)
    address, fresh = array.data.ptr, machine.memory.fresh[0]
    del array
    again = xp.empty(1000, np.float32)
    assert again.data.ptr == address
    assert machine.memory.fresh[0] == fresh
    assert np.isnan(again.get()).all()
    assert machine.memory.requests[0] == [4000, 4000]


def test_copies_between_devices(xp: Any) -> None:
    array = xp.arange(6, dtype=np.float32)
    xp.cuda.get_current_stream().synchronize()  # a copy orders nothing on the device that it reads from
    with xp.cuda.Device(1):
        other = xp.asarray(array)
        assert other.device.id == 1
        other += np.float32(1)
        xp.copyto(array, other)
        xp.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(array.get(), np.arange(1, 7, dtype=np.float32))


def test_time_is_of_events_that_came_to_pass(xp: Any) -> None:
    begin, end = xp.cuda.Event(), xp.cuda.Event()
    begin.record()
    end.record()
    end.synchronize()
    assert xp.cuda.get_elapsed_time(begin, end) > 0
    with pytest.raises(ValueError, match="without timing"):
        xp.cuda.get_elapsed_time(begin, xp.cuda.get_current_stream().record(xp.cuda.Event(disable_timing=True)))


def test_suppressed_mistake_is_raised_at_the_end() -> None:
    with pytest.raises(AssertionError, match="never recorded"), standing_in(), suppress(DeviceMistake):
        select_backend("cuda").xp.cuda.Event().synchronize()


def test_two_arrays_that_seem_to_overlap_cost_a_copy(machine: Machine, xp: Any) -> None:
    array = xp.zeros((4, 6), np.float32)
    left, right = array[:, :3], array[:, 3:]
    before = len(machine.memory.requests[0])
    left += left
    assert len(machine.memory.requests[0]) == before
    left += right
    assert machine.memory.requests[0][before:] == [4 * 3 * 4]


def test_cupy_has_all_that_its_stand_in_has() -> None:
    """Names, and of functions the parameters; against an installed CuPy, which needs no device for that."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    machine = Machine()
    for name, module in modules(machine, Blas(machine)).items():
        if name.startswith("cupy_backends"):
            continue  # which loads cuBLAS
        real = importlib.import_module(name)
        for member, ours in vars(module).items():
            if member.startswith("__"):
                continue
            theirs = getattr(real, member)
            if not isinstance(ours, Module) and inspect.isfunction(theirs) and callable(ours):
                own = [one for one in inspect.signature(ours).parameters.values() if one.kind is not one.VAR_POSITIONAL]
                known = inspect.signature(theirs).parameters
                assert any(one.kind is one.VAR_POSITIONAL for one in known.values()) or all(
                    one.name in known for one in own
                ), f"{name}.{member}"


def test_a_job_may_ask_for_it(xp: Any) -> None:
    assert select_backend("auto") == Backend("cupy", xp)
