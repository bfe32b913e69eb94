"""Named vectors in one process, and programs run on them: what shards do, in plain NumPy and any float type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dbelief.core.absent import pairs
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
        penalised = np.ones(self._length, bool)
        for start, stop in pairs(operation.exempt):
            penalised[start:stop] = False
        return _FORMULAS[operation.name](arrays, operation.scalars, penalised) or []


def _lincomb(v: list[np.ndarray], c: tuple[float, ...], on: np.ndarray) -> None:
    v[0][:] = sum(factor * x.astype(np.float64) for factor, x in zip(c, v[1:], strict=True))


def _put(target: np.ndarray, values: Any) -> None:
    target[:] = values


def pseudo_gradient(w: np.ndarray, gradient: np.ndarray, c: Any) -> np.ndarray:
    """Andrew and Gao 2007, equation 4: from the one-sided derivatives of the loss and c |w|_1."""
    left, right = (gradient + c * np.where(w == 0, side, np.sign(w)) for side in (-1.0, 1.0))
    return np.where(left > 0, left, np.where(right < 0, right, 0.0))


def projected(values: np.ndarray, signs: np.ndarray, on: Any = True) -> np.ndarray:
    """The paper's pi: 0 where the sign is not the wanted one."""
    return np.where(on & (np.sign(values) != signs), 0.0, values)


def _pseudo(v: list[np.ndarray], c: tuple[float, ...], on: np.ndarray) -> None:
    _, w, gradient = (x.astype(np.float64) for x in v)
    v[0][:] = np.where(np.isnan(gradient), gradient, pseudo_gradient(w, gradient, np.where(on, c[0], 0.0)))


_FORMULAS: dict[str, Callable[[list[np.ndarray], tuple[float, ...], np.ndarray], list[float] | None]] = {
    "copy": lambda v, c, on: _put(v[0], v[1]),
    "dots": lambda v, c, on: [
        float(np.vdot(a.astype(float), b.astype(float))) for a, b in zip(v[::2], v[1::2], strict=True)
    ],
    "lincomb": _lincomb,
    "norm1": lambda v, c, on: [float(np.abs(v[0][on].astype(float)).sum())],
    "pseudo": _pseudo,
    "opposed": lambda v, c, on: _put(v[0], projected(v[0], -np.sign(v[1]), on)),
    "orthant": lambda v, c, on: _put(v[0], projected(v[0], np.where(v[1] == 0, -np.sign(v[2]), np.sign(v[1])), on)),
}
