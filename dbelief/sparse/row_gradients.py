"""Gradients of the rows that a replica has read, packed for the push of its step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dbelief.errors import NonFinite

from .table_reader import TableReader

RowGradients = tuple[np.ndarray, np.ndarray]
"""(n,) int64 keys, each once, and (n, width) float32 gradients of their rows."""


def packed_gradients(
    found: Mapping[str, Sequence[RowGradients]], reader: TableReader, scale: float = 1.0
) -> dict[int, np.ndarray]:
    """By bucket, the packed gradients of rows by table; of a key in several parts they are added.

    `scale`: factor of all of them.

    Raises
    ------
    NonFinite
        A gradient is NaN or infinite; names table and key.
    """
    packed: dict[int, np.ndarray] = {}
    for name, parts in found.items():
        if not parts:
            continue
        table = reader.table(name)
        keys, gradients = _added(parts)
        reader.pushed(table, keys)
        if scale != 1.0:
            gradients = gradients * np.float32(scale)
        if not np.isfinite(np.vdot(gradients, gradients)) and not np.isfinite(gradients).all():  # squares may overflow
            finite = np.isfinite(gradients).all(axis=1)
            raise NonFinite(f"the gradient of table {name!r} is not finite for key {keys[~finite][0]}")
        packed |= table.pack(keys, gradients)
    return packed


def _added(parts: Sequence[RowGradients]) -> RowGradients:
    """Keys of all parts, each once, and their gradients."""
    if len(parts) == 1:
        return parts[0]
    keys, places = np.unique(np.concatenate([own for own, _ in parts]), return_inverse=True)
    added = np.zeros((keys.size, parts[0][1].shape[1]), np.float32)
    np.add.at(added, places, np.concatenate([gradients for _, gradients in parts]))
    return keys, added
