"""`cupy.ndarray`: its numbers are out of the host's reach until somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from .machine import Device, Machine, Pointer, Stream
from .memory import Piece

SCALARS = bool, int, float, np.generic


class ndarray:
    """Numbers on a device.

    Parameters
    ----------
    numbers
        Where they are, which nobody but an operation that runs may look at.
    """

    __array_priority__ = 100

    def __init__(self, machine: Machine, piece: Piece, numbers: np.ndarray) -> None:
        self._machine, self._piece, self.numbers = machine, piece, numbers

    # -- what is known without the numbers -----------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.numbers.strides

    @property
    def dtype(self) -> np.dtype:
        return self.numbers.dtype

    @property
    def size(self) -> int:
        return self.numbers.size

    @property
    def ndim(self) -> int:
        return self.numbers.ndim

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes

    @property
    def itemsize(self) -> int:
        return self.numbers.itemsize

    @property
    def flags(self) -> Any:
        flags = self.numbers.flags
        return SimpleNamespace(c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous)

    @property
    def data(self) -> Pointer:
        return Pointer(self._machine, self._piece, self.numbers.ctypes.data)

    @property
    def device(self) -> Device:
        return Device(self._machine, self._piece.block.device)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return len(self.numbers)

    def _seen(self, numbers: np.ndarray) -> ndarray:
        """A view."""
        return ndarray(self._machine, self._piece, numbers)

    def reshape(self, *shape: Any) -> ndarray:
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        try:
            view = self.numbers.reshape(wanted, copy=False)
        except ValueError:
            if self.numbers.flags.c_contiguous:
                raise  # another number of elements; elsewhere a copy may be needed
            return self.copy().reshape(*shape)
        return self._seen(view)

    def ravel(self) -> ndarray:
        return self.reshape(-1)

    def view(self, dtype: Any = None) -> ndarray:
        return self._seen(self.numbers.view() if dtype is None else self.numbers.view(dtype))

    def transpose(self, *axes: int) -> ndarray:
        return self._seen(self.numbers.transpose(*axes))

    def swapaxes(self, one: int, other: int) -> ndarray:
        return self._seen(self.numbers.swapaxes(one, other))

    @property
    def T(self) -> ndarray:
        return self._seen(self.numbers.T)

    # -- from and to the host ------------------------------------------------------------------------------------

    def get(
        self, stream: Stream | None = None, order: str = "C", out: np.ndarray | None = None, *, blocking: bool = True
    ) -> np.ndarray:
        host = np.empty(self.shape, self.dtype) if out is None else out
        if not isinstance(host, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained fromcupy.ndarray")
        if host.dtype != self.dtype:
            raise TypeError(f"{host.dtype} array cannot be obtained from {self.dtype} array")
        if host.shape != self.shape:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {host.shape}")
        if not host.flags.c_contiguous:
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        chosen = self._machine.stream() if stream is None else stream
        with self._machine.on(self.device.id):
            source = self
            if not self.flags.c_contiguous:
                with chosen:
                    source = self.copy()
            self._machine.copy(host, source.numbers, chosen.queue, blocking, stalls=not blocking)
        return host

    def set(self, arr: np.ndarray, stream: Stream | None = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if not (self.flags.c_contiguous or self.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        chosen = self._machine.stream() if stream is None else stream
        with self._machine.on(self.device.id):
            self._machine.copy(self.numbers, arr, chosen.queue, wait=False, stalls=stream is not None)

    def item(self) -> Any:
        return self.get().item()

    def tobytes(self) -> bytes:
        return self.get().tobytes()

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __repr__(self) -> str:
        return repr(self.get())

    def __array__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        from .functions import UFUNCS

        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            return NotImplemented
        (out,) = options.pop("out", (None,))
        return apply(self._machine, ufunc, inputs, out, **options)

    def __array_function__(self, function: Callable[..., Any], *rest: Any) -> NoReturn:
        raise TypeError(f"numpy.{function.__name__} of a device's array: the stand-in has it on its own module alone")

    def __neg__(self) -> ndarray:
        return apply(self._machine, np.negative, (self,))

    # -- operations ----------------------------------------------------------------------------------------------

    def copy(self, order: str = "C") -> ndarray:
        made = empty(self._machine, self.shape, self.dtype)
        if self.device.id == self._machine.device:
            launch(self._machine, "copy", lambda to, of: np.copyto(to, of), [made], [self])
        else:
            self._machine.copy(made.numbers, self.numbers, self._machine.stream().queue, wait=False)
        return made

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        if not copy and self.dtype == dtype:
            return self
        made = empty(self._machine, self.shape, dtype)
        launch(self._machine, "astype", lambda to, of: np.copyto(to, of, casting="unsafe"), [made], [self])
        return made

    def fill(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.shape != ():
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        if isinstance(value, ndarray):
            if value.shape != ():
                raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
            launch(self._machine, "fill", lambda to, of: to.fill(of), [self], [value])
            return
        launch(self._machine, "fill", lambda to: to.fill(value), [self], [])

    def sum(self, axis: Any = None, dtype: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
        return reduce(self._machine, np.sum, self, axis, out, keepdims=keepdims, dtype=dtype)

    def max(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
        return reduce(self._machine, np.max, self, axis, out, keepdims=keepdims)

    def min(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
        return reduce(self._machine, np.min, self, axis, out, keepdims=keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
        return reduce(self._machine, np.mean, self, axis, out, keepdims=keepdims, dtype=dtype)

    def dot(self, other: ndarray, out: ndarray | None = None) -> ndarray:
        from .products import dot

        return dot(self._machine, self, other, out)

    def __getitem__(self, index: Any) -> ndarray:
        places = [one for one in _parts(index) if isinstance(one, ndarray)]
        if not places:
            return self._seen(_as_view(self.numbers, index))
        made = empty(self._machine, _chosen(self, index), self.dtype)
        scratch = empty(self._machine, made.shape, np.int64)  # CuPy makes one index of several
        launch(
            self._machine,
            "take",
            lambda to, _, of, *at: np.copyto(to, of[_with(index, at)]),
            [made, scratch],
            [self, *places],
        )
        return made

    def __setitem__(self, index: Any, value: Any) -> None:
        places = [one for one in _parts(index) if isinstance(one, ndarray)]
        if places:
            self._scatter(index, value, places)
            return
        target = self._seen(_as_view(self.numbers, index))
        if not isinstance(value, ndarray):
            target.fill(value)
            return
        same = (value.shape, value.strides) == (target.shape, target.strides)
        if same and value.numbers.ctypes.data == target.numbers.ctypes.data:
            return
        if same and target.flags.c_contiguous and value.dtype == target.dtype:
            self._machine.copy(target.numbers, value.numbers, self._machine.stream().queue, wait=False)
            return
        copy_into(self._machine, target, value)

    def _scatter(self, index: Any, value: Any, places: list[ndarray]) -> None:
        scratch = empty(self._machine, _chosen(self, index), np.int64)
        given = [value] if isinstance(value, ndarray) else []

        def put(to: np.ndarray, _: np.ndarray, *read: np.ndarray) -> None:
            to[_with(index, read[len(given) :])] = read[0] if given else value

        launch(self._machine, "put", put, [self, scratch], [*given, *places])


def empty(machine: Machine, shape: Any, dtype: Any) -> ndarray:
    """An array of this thread's device."""
    kind = np.dtype(dtype)
    whole = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    size = int(np.prod(whole, dtype=np.int64))
    piece = machine.memory.request(size * kind.itemsize, machine.device, machine.stream().queue)
    return ndarray(machine, piece, piece.numbers[: size * kind.itemsize].view(kind).reshape(whole))


def launch(
    machine: Machine, name: str, run: Callable[..., object], writes: Sequence[ndarray], reads: Sequence[ndarray]
) -> None:
    """Submit a kernel that gets the numbers of what it writes and what it reads.

    Raises
    ------
    TypeError, ValueError
        As CuPy's: an array of NumPy's, or of another device.
    """
    for one in (*writes, *reads):
        if not isinstance(one, ndarray):
            raise TypeError(f"Unsupported type {type(one)}")
        if one.device.id != machine.device:
            raise ValueError(
                "Array device must be same as the current device: "
                f"array device = {one.device.id} while current = {machine.device}"
            )
    numbers = [one.numbers for one in (*writes, *reads)]
    accesses = [access for one in writes for access in machine.memory.access(one.numbers, True)]
    accesses += [access for one in reads for access in machine.memory.access(one.numbers, False)]

    def at_last() -> None:
        with np.errstate(all="ignore"):
            run(*numbers)

    machine.launch(name, at_last, accesses)


def apply(machine: Machine, ufunc: np.ufunc, inputs: Sequence[Any], out: Any = None, **options: Any) -> ndarray:
    """Call a ufunc; what overlaps with what is written, and is another array, is copied before, as CuPy does."""
    for one in inputs:
        if not isinstance(one, (ndarray, *SCALARS)):
            raise TypeError(f"Unsupported type {type(one)}")
    shape = np.broadcast_shapes(*(one.shape for one in inputs if isinstance(one, ndarray)))
    dummies = [np.ones(0, one.dtype) if isinstance(one, ndarray) else one for one in inputs]
    if out is None:
        out = empty(machine, shape, ufunc(*dummies, **options).dtype)
    elif not isinstance(out, ndarray):
        raise TypeError("Output arguments type must be cupy.ndarray")
    elif out.shape != shape:
        raise ValueError("Out shape is mismatched")
    else:
        ufunc(*dummies, out=np.ones(0, out.dtype), **options)
    arrays = [_apart(one, out) for one in inputs if isinstance(one, ndarray)]
    wanted = [isinstance(one, ndarray) for one in inputs]

    def run(to: np.ndarray, *numbers: np.ndarray) -> None:
        ufunc(*filled(inputs, wanted, numbers), out=to, **options)

    launch(machine, ufunc.__name__, run, [out], arrays)
    return out  # type: ignore[no-any-return]


def reduce(
    machine: Machine,
    function: Any,
    array: ndarray,
    axis: Any,
    out: ndarray | None,
    keepdims: bool = False,
    **options: Any,
) -> ndarray:
    """Call a reduction."""
    options = {name: value for name, value in options.items() if value is not None}
    one = function(np.ones((1,) * array.ndim, array.dtype), axis=axis, keepdims=True, **options)
    axes = range(array.ndim) if axis is None else [axis % array.ndim]
    left = [(1 if place in axes else length) for place, length in enumerate(array.shape)]
    shape = tuple(left) if keepdims else tuple(n for place, n in enumerate(left) if place not in axes)
    made = empty(machine, shape, one.dtype) if out is None else out
    if made.shape != shape:
        raise ValueError("Out shape is mismatched")

    def run(to: np.ndarray, of: np.ndarray) -> None:
        np.copyto(to, function(of, axis=axis, keepdims=keepdims, **options))

    launch(machine, function.__name__, run, [made], [array])
    return made


def filled(inputs: Sequence[Any], wanted: Sequence[bool], numbers: Sequence[np.ndarray]) -> list[Any]:
    """Inputs with numbers in place of those that are arrays."""
    rest = iter(numbers)
    return [next(rest) if is_array else one for is_array, one in zip(wanted, inputs, strict=True)]


def copy_into(machine: Machine, target: ndarray, source: Any, where: ndarray | None = None) -> None:
    """Copy with any cast and broadcast, by a kernel."""
    read = [] if where is None else [where]
    if isinstance(source, ndarray):
        read.insert(0, _apart(source, target))

    def run(to: np.ndarray, *numbers: np.ndarray) -> None:
        of = numbers[0] if isinstance(source, ndarray) else source
        np.copyto(to, of, casting="unsafe", where=True if where is None else numbers[-1])

    if isinstance(source, ndarray):
        np.broadcast_shapes(target.shape, source.shape)
    launch(machine, "copyto", run, [target], read)


def _apart(array: ndarray, out: ndarray) -> ndarray:
    if array is out or not array.size or not out.size:
        return array
    (low, high), (start, stop) = map(np.lib.array_utils.byte_bounds, (array.numbers, out.numbers))
    return array.copy() if low < stop and start < high else array


def _parts(index: Any) -> tuple[Any, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    for one in parts:
        if isinstance(one, (np.ndarray, list)):
            raise TypeError("an index that is an array of the host: the stand-in wants a device's")
    return parts


def _as_view(numbers: np.ndarray, index: Any) -> np.ndarray:
    return numbers[index if Ellipsis in (parts := _parts(index)) else (*parts, Ellipsis)]


def _with(index: Any, places: Sequence[np.ndarray]) -> tuple[Any, ...]:
    rest = iter(places)
    return tuple(next(rest) if isinstance(one, ndarray) else one for one in _parts(index))


def _chosen(array: ndarray, index: Any) -> tuple[int, ...]:
    zeros = [np.zeros(one.shape, np.int64) for one in _parts(index) if isinstance(one, ndarray)]
    chosen: np.ndarray = np.broadcast_to(np.ones(()), array.shape)[_with(index, zeros)]
    return chosen.shape
