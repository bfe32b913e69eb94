"""`cupy.cuda`: devices, streams, events and pinned memory, for one process and every thread in it."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType, TracebackType
from typing import Any, Self

import numpy as np

from .memory import DEVICE_BYTES, Memory, Piece
from .order import Access, Mark, Order, Queue

DEFAULT_STREAM = 0


class Machine:
    """The devices of a process.

    Parameters
    ----------
    devices
        How many there are.
    seed, eagerness, halts
        See `Order`.
    staged
        Whether what is copied from pageable memory is read before the call returns, as where a driver stages it. A
        device that reads pageable memory itself does so later.

    Attributes
    ----------
    stalls
        Asynchronous copies that the host waited for all the same, since its memory was pageable.
    """

    def __init__(
        self, devices: int = 1, seed: int = 0, eagerness: float = 0.1, staged: bool = True, halts: bool = True
    ) -> None:
        self.order = Order(seed, eagerness, halts)
        self.memory = Memory(self.order)
        self.devices, self.staged = devices, staged
        self.defaults = [self.order.make(device, default=True) for device in range(devices)]
        self.stalls = 0
        self._here = threading.local()

    @property
    def device(self) -> int:
        """This thread's current device."""
        return int(getattr(self._here, "device", 0))

    @device.setter
    def device(self, number: int) -> None:
        if not 0 <= number < self.devices:
            raise ValueError(f"cudaErrorInvalidDevice: there is no device {number}")
        self._here.device = number

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device this thread's current one."""
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def stream(self) -> Stream:
        """This thread's current stream of its current device."""
        streams: dict[int, Stream] = self._here.__dict__.setdefault("streams", {})
        return streams.get(self.device) or Stream(self, null=True)

    def use(self, stream: Stream) -> None:
        """Make a stream the current one of this thread and device."""
        self._here.__dict__.setdefault("streams", {})[self.device] = stream

    def launch(self, name: str, run: Callable[[], None], accesses: Iterable[Access] = ()) -> None:
        """Submit a kernel to the current stream."""
        queue = self.stream().queue
        if queue.device != self.device:
            raise self.order.mistake(
                f"{name}: its stream is device {queue.device}'s, and device {self.device} is in use"
            )
        self.order.submit(queue, name, run, accesses)

    def copy(self, target: np.ndarray, source: np.ndarray, queue: Queue, wait: bool, stalls: bool = False) -> None:
        """Copy between host and device, or two devices, as `cudaMemcpyAsync` does; wait for it where asked to.

        From pageable memory of the host it is staged before the call returns, into it the host waits for it: `stalls`
        counts that, for a caller who means it to be asynchronous.
        """
        memory = self.memory
        reads, writes = memory.access(source, False), memory.access(target, True)
        if source.size and not reads and self.staged:
            source = source.copy()
        to, of = memory.unheld(target), memory.unheld(source)
        self.order.submit(queue, "copy", lambda: np.copyto(to, of), reads + writes)
        pageable = target.size > 0 and not (reads and writes)
        self.stalls += stalls and pageable
        if wait or (target.size and not writes):
            self.order.drain(queue)


class Device:
    """`cupy.cuda.Device`."""

    def __init__(self, machine: Machine, number: int | None = None) -> None:
        self._machine = machine
        self.id = machine.device if number is None else number
        self._before: list[int] = []

    def use(self) -> Self:
        self._machine.device = self.id
        return self

    def synchronize(self) -> None:
        for queue in self._machine.order.of(self.id):
            self._machine.order.drain(queue)

    @property
    def mem_info(self) -> tuple[int, int]:
        return DEVICE_BYTES - self._machine.memory.used(self.id), DEVICE_BYTES

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02X}:00.0"

    def __enter__(self) -> Self:
        self._before.append(self._machine.device)
        return self.use()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._machine.device = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __int__(self) -> int:
        return self.id


class Event:
    """`cupy.cuda.Event`."""

    def __init__(
        self, machine: Machine, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self._machine, self._timed, self._device = machine, not disable_timing, machine.device
        self.mark: Mark | None = None

    def record(self, stream: Stream | None = None) -> None:
        queue = self._machine.defaults[self._machine.device] if stream is None else stream.queue
        if queue.device != self._device:
            raise self._machine.order.mistake(f"an event of device {self._device} is recorded on device {queue.device}")
        self.mark = self._machine.order.mark(queue)

    def recorded(self) -> Mark:
        """Where it was recorded; CUDA takes one that never was for one that has come to pass."""
        if self.mark is None:
            raise self._machine.order.mistake("an event is waited for that was never recorded")
        return self.mark

    def synchronize(self) -> None:
        self._machine.order.reach(self.recorded())

    @property
    def done(self) -> bool:
        return self._machine.order.passed(self.recorded())

    def passed_s(self) -> float:
        """When it came to pass."""
        if not self._timed:
            raise ValueError("cudaErrorInvalidResourceHandle: an event without timing")
        passed_s = self.recorded().passed_s
        if passed_s is None:
            raise ValueError("cudaErrorNotReady: the event has not come to pass")
        return passed_s


class Stream:
    """`cupy.cuda.Stream`."""

    def __init__(
        self,
        machine: Machine,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        if ptds:
            raise AttributeError("the stand-in for CuPy has no per-thread default streams")
        self._machine, self._null = machine, null
        if not null:
            self._queue = machine.order.make(machine.device, blocking=not non_blocking)
            weakref.finalize(self, machine.order.drop, self._queue).atexit = False

    @property
    def queue(self) -> Queue:
        """Its operations; the default stream is that of the current device."""
        return self._machine.defaults[self._machine.device] if self._null else self._queue

    @property
    def ptr(self) -> int:
        return DEFAULT_STREAM if self._null else self._queue.number

    def record(self, event: Event | None = None) -> Event:
        event = Event(self._machine) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self._machine.order.wait_for(self.queue, event.recorded())

    def synchronize(self) -> None:
        self._machine.order.drain(self.queue)

    @property
    def done(self) -> bool:
        return not self.queue.pending

    def use(self) -> Self:
        self._machine.use(self)
        return self

    def __enter__(self) -> Self:
        self._before = self._machine.stream()
        return self.use()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._before.use()


def pinned(machine: Machine, size: int) -> Any:
    """`cupy.cuda.alloc_pinned_memory`: an object with a buffer, whose memory is given back with its last view."""
    piece = machine.memory.pinned(size)
    pointer = _pinned_type(len(piece.numbers)).from_buffer(piece.numbers)
    pointer.piece, pointer.ptr = piece, piece.block.address
    return pointer


@cache
def _pinned_type(size: int) -> Any:
    return type("PinnedMemoryPointer", (ctypes.c_char * size,), {"size": lambda self: size})


class Pool:
    """`cupy.cuda.MemoryPool` of the current device."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def total_bytes(self) -> int:
        return self._machine.memory.used(self._machine.device)


class Pointer:
    """`cupy.cuda.MemoryPointer`."""

    def __init__(self, machine: Machine, piece: Piece, ptr: int) -> None:
        self.mem, self.ptr, self.device_id = piece, ptr, piece.block.device
        self._machine = machine

    @property
    def device(self) -> Device:
        return Device(self._machine, self.device_id)


class Module(ModuleType):
    """A module of the stand-in: what is missing is named with it."""

    def __init__(self, name: str, **members: Any) -> None:
        super().__init__(name)
        self.__dict__.update(members)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the stand-in for CuPy has no {self.__name__}.{name}")


def elapsed_ms(begin: Event, end: Event) -> float:
    """`cupy.cuda.get_elapsed_time`."""
    return (end.passed_s() - begin.passed_s()) * 1e3 + 1e-6
