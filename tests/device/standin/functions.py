"""`cupy`'s functions on arrays, as far as the product calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .array import SCALARS, apply, copy_into, empty, filled, launch, ndarray, reduce
from .machine import Machine, Module
from .memory import Piece
from .products import dot, matmul

UFUNCS = (
    "abs", "absolute", "add", "bitwise_and", "bitwise_or", "bitwise_xor", "cos", "divide", "equal", "exp", "greater",
    "greater_equal", "isfinite", "left_shift", "less", "less_equal", "log", "log1p", "logical_and", "logical_not",
    "logical_xor", "maximum", "minimum", "multiply", "negative", "not_equal", "power", "reciprocal", "right_shift",
    "sign", "sqrt", "square", "subtract", "tanh", "true_divide",
)  # fmt: skip
"""Those of NumPy that CuPy has too: what is called, and what NumPy hands on of a device's array."""

TYPES = "bool_", "float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16", "uint32", "uint64"


class Functions:
    """The functions, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def members(self) -> dict[str, Any]:
        """By name, what `cupy` has."""
        own = {name: getattr(self, name) for name in dir(self) if not name.startswith("_") and name != "members"}
        ufuncs = {name: functools.partial(self._ufunc, getattr(np, name)) for name in UFUNCS}
        ufuncs["add"].at = self._add_at  # type: ignore[attr-defined]
        types = {name: getattr(np, name) for name in TYPES}
        tricks = Module("cupy.lib.stride_tricks", as_strided=self._as_strided)
        random = Module("cupy.random", default_rng=lambda seed: Module("Generator", standard_normal=self._drawn(seed)))
        return {
            **types, **ufuncs, **own,
            "max": functools.partial(self._largest, np.max), "min": functools.partial(self._largest, np.min),
            "ndarray": ndarray, "inf": np.inf, "nan": np.nan, "newaxis": None,
            "lib": Module("cupy.lib", stride_tricks=tricks), "random": random,
        }  # fmt: skip

    def _ufunc(
        self, ufunc: np.ufunc, *inputs: Any, out: Any = None, dtype: Any = None, casting: str | None = None
    ) -> Any:
        options = {name: value for name, value in (("dtype", dtype), ("casting", casting)) if value is not None}
        if len(inputs) > ufunc.nin:
            inputs, out = inputs[:-1], inputs[-1]
        return apply(self._machine, ufunc, inputs, out, **options)

    def _add_at(self, a: ndarray, indices: ndarray, b: ndarray) -> None:
        scratch = empty(self._machine, indices.shape, np.int64)
        launch(self._machine, "add at", lambda to, _, at, of: np.add.at(to, at, of), [a, scratch], [indices, b])

    def sum(self, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return reduce(self._machine, np.sum, _array(a), axis, out, keepdims=keepdims, dtype=dtype)

    def _largest(self, function: Any, a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return reduce(self._machine, function, _array(a), axis, out, keepdims=keepdims)

    def argmax(self, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return reduce(self._machine, np.argmax, _array(a), axis, out, keepdims=keepdims)

    def count_nonzero(self, a: Any, axis: Any = None) -> ndarray:
        return reduce(self._machine, np.count_nonzero, _array(a), axis, None)

    def where(self, condition: Any, x: Any, y: Any) -> ndarray:
        arrays = [one for one in (condition, x, y) if isinstance(one, ndarray)]
        shape = np.broadcast_shapes(*(one.shape for one in arrays))
        given = [np.ones(0, one.dtype) if isinstance(one, ndarray) else one for one in (condition, x, y)]
        made = empty(self._machine, shape, np.where(*given).dtype)
        wanted = [isinstance(one, ndarray) for one in (condition, x, y)]

        def run(to: np.ndarray, *numbers: np.ndarray) -> None:
            np.copyto(to, np.where(*filled((condition, x, y), wanted, numbers)))

        launch(self._machine, "where", run, [made], arrays)
        return made

    # -- made anew -----------------------------------------------------------------------------------------------

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
        return empty(self._machine, shape, dtype)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
        made = empty(self._machine, shape, np.asarray(fill_value).dtype if dtype is None else dtype)
        made.fill(fill_value)
        return made

    def zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
        return self.full(shape, 1, dtype)

    def empty_like(self, prototype: Any, dtype: Any = None) -> ndarray:
        return empty(self._machine, _array(prototype).shape, prototype.dtype if dtype is None else dtype)

    def full_like(self, a: Any, fill_value: Any, dtype: Any = None) -> ndarray:
        made = self.empty_like(a, dtype)
        made.fill(fill_value)
        return made

    def zeros_like(self, a: Any, dtype: Any = None) -> ndarray:
        return self.full_like(a, 0, dtype)

    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
        values = np.arange(start, dtype=dtype) if stop is None else np.arange(start, stop, step, dtype=dtype)
        made = empty(self._machine, values.shape, values.dtype)
        launch(self._machine, "arange", lambda to: np.copyto(to, values), [made], [])
        return made

    # -- from and to the host ------------------------------------------------------------------------------------

    def array(self, obj: Any, dtype: Any = None, copy: bool = True) -> ndarray:
        if isinstance(obj, ndarray):
            here = obj.device.id == self._machine.device
            if here and not copy and dtype in (None, obj.dtype):
                return obj
            made = obj.copy()
            return made if dtype is None else made.astype(dtype, copy=False)
        host = np.ascontiguousarray(np.asarray(obj, dtype)) if np.ndim(obj) else np.asarray(obj, dtype)
        made = empty(self._machine, host.shape, host.dtype)
        self._send(made, host)
        return made

    def asarray(self, a: Any, dtype: Any = None) -> ndarray:
        return self.array(a, dtype, copy=False)

    def frombuffer(self, buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> ndarray:
        return self.asarray(np.frombuffer(buffer, dtype, count, offset))

    def _drawn(self, seed: int) -> Callable[..., ndarray]:
        """`standard_normal` of a generator: NumPy's numbers, since CuPy's are a matter of its version."""
        rng = np.random.default_rng(seed)
        return lambda shape, dtype=np.float64: self.asarray(rng.standard_normal(shape, dtype))

    def _send(self, made: ndarray, host: np.ndarray) -> None:
        """Copy by pinned memory of CuPy's own, which it frees when it has seen that the copy is complete.

        Whoever is given that memory next is ordered after the copy: CuPy has asked for its event.
        """
        if not host.size:
            return
        piece = self._machine.memory.pinned(host.nbytes)
        staged = piece.numbers[: host.nbytes].view(host.dtype).reshape(host.shape)
        staged[...] = host
        queue = self._machine.stream().queue
        self._machine.copy(made.numbers, staged, queue, wait=False)

        def freed(held: Piece = piece) -> None:
            held.block.touched.pop(queue.number, None)

        self._machine.order.submit(queue, "staged", freed)

    def asnumpy(self, a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
        return a.get(stream, order, out, blocking=blocking) if isinstance(a, ndarray) else np.asarray(a)

    # -- copies and products -------------------------------------------------------------------------------------

    def ascontiguousarray(self, a: Any, dtype: Any = None) -> ndarray:
        array = _array(a) if dtype is None else _array(a).astype(dtype, copy=False)
        return array if array.flags.c_contiguous else array.copy()

    def copyto(self, dst: Any, src: Any, casting: Any = "same_kind", where: Any = None) -> None:
        target = _array(dst)
        if not isinstance(src, (ndarray, *SCALARS)):
            raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
        if isinstance(src, (bool, int, float)) and not isinstance(src, np.generic):
            np.copyto(np.empty((), target.dtype), src, casting=casting)
        elif not np.can_cast(src.dtype, target.dtype, casting):
            raise TypeError(f"Cannot cast {src.dtype} to {target.dtype} in {casting} casting mode")
        if isinstance(src, ndarray) and where is None and _in_one_piece(target, src):
            self._machine.copy(target.numbers, src.numbers, self._machine.stream().queue, wait=False)
            return
        with self._machine.on(target.device.id):
            if isinstance(src, ndarray) and src.device != target.device:
                src = src.copy()
            if target.size:
                copy_into(self._machine, target, src, where)

    def concatenate(self, tup: Any, axis: int = 0, out: Any = None) -> ndarray:
        arrays = [_array(one) for one in tup]
        sample = np.concatenate([np.broadcast_to(np.ones((), one.dtype), one.shape) for one in arrays], axis)
        made = empty(self._machine, sample.shape, sample.dtype) if out is None else out
        launch(self._machine, "concatenate", lambda to, *of: np.concatenate(of, axis, out=to), [made], arrays)
        return made

    def matmul(self, a: Any, b: Any, out: Any = None) -> ndarray:
        return matmul(self._machine, a, b, out)

    def dot(self, a: Any, b: Any, out: Any = None) -> ndarray:
        return dot(self._machine, a, b, out)

    def vdot(self, a: Any, b: Any) -> ndarray:
        return dot(self._machine, _array(a).reshape(-1), _array(b).reshape(-1))

    def _as_strided(self, x: Any, shape: Any, strides: Any) -> ndarray:
        return ndarray(self._machine, x._piece, np.lib.stride_tricks.as_strided(x.numbers, shape, strides))


def _array(one: Any) -> ndarray:
    if not isinstance(one, ndarray):
        raise TypeError(f"Unsupported type {type(one)}")
    return one


def _in_one_piece(target: ndarray, source: ndarray) -> bool:
    both = target.flags, source.flags
    same = (target.dtype, target.shape) == (source.dtype, source.shape) and target.size
    return bool(same) and all(flags.c_contiguous for flags in both)
