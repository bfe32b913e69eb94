"""File of nested state, such as an optimiser's `state_dict`: its tensors as safetensors, all else as JSON beside them.

    metadata    "form": {"format", "about", "state", "crc32"} as checksummed JSON; `about` is the caller's mapping
    tensors     by their places in the state, "optimizer/state/0/exp_avg"

In JSON a list is a list, and a tensor {"tensor": PLACE}; a mapping is {"mapping": [[KEY, VALUE], ...]}, as its keys may
be numbers, and a counter or a tuple the like. Nothing of a file is executed. It is replaced atomically, and its
checksum covers every number.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from dbelief.checkpoint.checksummed_json import parse_checksummed, with_checksum
from dbelief.checkpoint.safetensors_io import array_of, write_tensors
from dbelief.errors import CorruptSnapshot, UserError

FORMAT = 1
MOST_BYTES = 1 << 34
"""Bytes of the tensors of one file: those of Adam's moments of 2^31 parameters."""

ToArray = Callable[[Any], np.ndarray | None]
"""A tensor as an array of its own memory; None where a value is no tensor."""


class PackedState:
    """A copy of nested state.

    Parameters
    ----------
    state
        Mappings, lists, tuples, counters, numbers, texts, None and tensors; keys are numbers or texts.
    to_array
        Applied to what is none of the others.

    Attributes
    ----------
    arrays
        The tensors by place.

    Raises
    ------
    UserError
        A value is of another type, or the tensors have more than `MOST_BYTES`; names the place.
    """

    def __init__(self, state: Mapping[str, Any], to_array: ToArray) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._to_array, self._bytes = to_array, 0
        self.structure = self._packed(state, "")

    def _packed(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            kind = "counter" if isinstance(value, Counter) else "mapping"
            return {kind: [[_key(key, place), self._packed(one, f"{place}/{key}")] for key, one in value.items()]}
        if isinstance(value, list | tuple):
            rows = [self._packed(one, f"{place}/{number}") for number, one in enumerate(value)]
            return rows if isinstance(value, list) else {"tuple": rows}
        array = self._to_array(value)
        if array is None:
            raise UserError(
                f"state {place[1:]} is a {type(value).__name__}: kept are tensors, numbers, texts, lists and mappings"
            )
        self._bytes += array.nbytes
        if self._bytes > MOST_BYTES:
            raise UserError(
                f"state {place[1:]}: up to it the state has {self._bytes:,} bytes, and {MOST_BYTES:,} are kept"
            )
        self.arrays[place[1:]] = array
        return {"tensor": place[1:]}


def _key(key: Any, place: str) -> Any:
    if not isinstance(key, bool | int | float | str):
        raise UserError(f"state {place[1:]}: a key is a {type(key).__name__}, must be a number or a text")
    return key


def write_state(path: Path, about: Mapping[str, Any], state: PackedState) -> None:
    """Write a file atomically and durably; an existing one is replaced.

    Raises
    ------
    WriteFailed
        It cannot be written; the existing one stays.
    """
    tensors = {name: (array.dtype, array.shape) for name, array in state.arrays.items()}
    form = {"about": about, "state": state.structure, "tensors_crc32": _checksum(sorted(state.arrays.items()))}
    with write_tensors(path, tensors, {"form": with_checksum(FORMAT, form).decode()}) as file:
        for name, array in state.arrays.items():
            file.write(name, array)


def read_state(path: Path, to_tensor: Callable[[np.ndarray], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file holds: `about`, and the state, its arrays as `to_tensor` makes tensors of them.

    Raises
    ------
    FileNotFoundError
        There is none.
    SnapshotError
        It is damaged (CorruptSnapshot), or of another format.
    """
    try:
        if path.stat().st_size > 2 * MOST_BYTES:
            raise CorruptSnapshot(f"{path}: has {path.stat().st_size:,} bytes, and no state has so many")
        raw = path.read_bytes()
        arrays = {name: array_of(**held) for name, held in deserialize(raw)}  # type: ignore[no-untyped-call]
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        form = parse_checksummed(path, lambda: header["__metadata__"]["form"], FORMAT)
        if form["tensors_crc32"] != _checksum(sorted(arrays.items())):
            raise CorruptSnapshot(f"{path}: does not match its checksum")
        tensors = {name: to_tensor(array) for name, array in arrays.items()}
        return form["about"], _unpacked(form["state"], tensors)
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptSnapshot(f"{path}: cannot be read: {error!r}") from error


def _unpacked(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "tuple":
        return tuple(_unpacked(held, tensors))
    made = {"mapping": dict, "counter": Counter}[kind]
    return made({key: _unpacked(one, tensors) for key, one in held})


def _checksum(arrays: Iterable[tuple[str, np.ndarray]]) -> int:
    total = 0
    for name, array in arrays:
        total = zlib.crc32(array.reshape(-1).view(np.uint8).data, zlib.crc32(name.encode(), total))
    return total
