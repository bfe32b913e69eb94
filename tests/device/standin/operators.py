"""The operators that NumPy's arrays have, for those of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .array import SCALARS, apply, ndarray


def add_operators() -> None:
    """The operators that NumPy's arrays have."""

    def both(ufunc: np.ufunc) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        def known(other: Any) -> bool:
            return isinstance(other, (ndarray, np.ndarray, *SCALARS))

        def here(self: ndarray, other: Any) -> Any:
            return apply(self._machine, ufunc, (self, other)) if known(other) else NotImplemented

        def there(self: ndarray, other: Any) -> Any:
            return apply(self._machine, ufunc, (other, self)) if known(other) else NotImplemented

        def into(self: ndarray, other: Any) -> Any:
            return apply(self._machine, ufunc, (self, other), self) if known(other) else NotImplemented

        return here, there, into

    arithmetic = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "pow": np.power,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "lshift": np.left_shift, "rshift": np.right_shift,
    }  # fmt: skip
    for name, ufunc in arithmetic.items():
        for prefix, method in zip(("", "r", "i"), both(ufunc), strict=True):
            setattr(ndarray, f"__{prefix}{name}__", method)
    compared = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    for name, ufunc in compared.items():
        setattr(ndarray, f"__{name}__", both(ufunc)[0])
    ndarray.__hash__ = None  # type: ignore[assignment]


add_operators()
