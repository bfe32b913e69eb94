"""Named vectors in one process, and programs run on them: what shards do, in plain NumPy and any float type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dbelief.core.vector_program import Operation, validate


class LocalSpace:
    """Vectors of one length in this process.

    Parameters
    ----------
    vectors
        Those that hold numbers at first; copied.
    dtype
        Of all of them.
    """

    def __init__(self, vectors: Mapping[str, np.ndarray], dtype: Any = np.float64) -> None:
        self.vectors = {name: np.array(values, dtype) for name, values in vectors.items()}
        lengths = {len(values) for values in self.vectors.values()}
        if len(lengths) != 1:
            raise ValueError(f"vectors of the lengths {sorted(lengths)} are in no one space")
        (self._length,) = lengths
        self._dtype = dtype

    def run(self, program: Sequence[Operation]) -> list[float]:
        """See `coordinator.runtime.shard_client.ShardClient.run`.

        Raises
        ------
        Refused
            As `dbelief.core.vector_program.validate`.
        """
        validate(program, self.vectors)
        return [scalar for operation in program for scalar in self._do(operation)]

    def _do(self, operation: Operation) -> list[float]:
        for name in operation.writes:
            self.vectors.setdefault(name, np.empty(self._length, self._dtype))
        arrays = [self.vectors[name] for name in operation.vectors]
        return _FORMULAS[operation.name](arrays, operation.scalars) or []


def _lincomb(v: list[np.ndarray], c: tuple[float, ...]) -> None:
    v[0][:] = sum(factor * x.astype(np.float64) for factor, x in zip(c, v[1:], strict=True))


def _put(target: np.ndarray, values: Any) -> None:
    target[:] = values


_FORMULAS: dict[str, Callable[[list[np.ndarray], tuple[float, ...]], list[float] | None]] = {
    "copy": lambda v, c: _put(v[0], v[1]),
    "dots": lambda v, c: [
        float(np.vdot(a.astype(float), b.astype(float))) for a, b in zip(v[::2], v[1::2], strict=True)
    ],
    "lincomb": _lincomb,
}
