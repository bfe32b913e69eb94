"""Samples of a Python object in a user's file: by index, or in named units that can be read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.data.samples import SETS
from dbelief.data.streams.ranges import Indexed, Ranges, unit_size
from dbelief.data.streams.stream_sets import StreamSets
from dbelief.data.streams.unit_source import UnitArrays, UnitSource
from dbelief.errors import DataError, ModelError
from dbelief.job import PythonData, resolve
from dbelief.nn.python_file import load_object, raised
from dbelief.process.runtime import runtime

UNIT = 256
"""Most samples of a unit, where the job says nothing."""
_LOCK = runtime.lock()
"""Held while a user's object reads: it may have one file for all its samples, and is one for all threads."""


class Converter:
    """Checks the arrays of a user's object, and converts them to those of the set.

    Attributes
    ----------
    path, where
        The user's file; and it with the object's name.
    features, dtype, width
        As in `UnitSource`; those of the first sample.
    """

    def __init__(self, path: Path, where: str, classes: int | None, inputs: np.ndarray, targets: np.ndarray) -> None:
        self.path, self.where, self._classes = path, where, classes
        self.features: tuple[int, ...] = inputs.shape[1:]
        self.dtype = _kept(inputs, where)
        self.width: int | None = None if classes is not None else int(np.prod(targets.shape[1:]))
        if not self.features:
            raise DataError(f"{where}: inputs of a sample must be an array of one axis or more, not a number")

    def arrays(self, inputs: Any, targets: Any, what: str) -> UnitArrays:
        """Samples as the set has them; `what`: where they are from.

        Raises
        ------
        DataError
            They are of another shape or kind than the first sample's, not finite, or a label is out of range.
        """
        inputs, targets = np.asarray(inputs), np.asarray(targets)
        if inputs.shape[1:] != self.features or len(inputs) != len(targets):
            raise DataError(
                f"{self.where}: {what} has inputs of shape {inputs.shape} and targets of shape {targets.shape}; wanted "
                f"(n, {', '.join(map(str, self.features))}) and as many targets"
            )
        if _kept(inputs, self.where) != self.dtype:
            raise DataError(f"{self.where}: {what} has inputs of {inputs.dtype}, the first sample has {self.dtype}")
        converted = np.ascontiguousarray(inputs, self.dtype)
        if self.dtype == np.float32 and not np.isfinite(converted).all():
            raise DataError(f"{self.where}: {what} has inputs that are NaN or infinite")
        return UnitArrays(converted, self._targets(targets, what))

    def _targets(self, targets: np.ndarray, what: str) -> np.ndarray:
        if self._classes is None:
            numbers = np.ascontiguousarray(targets.reshape(len(targets), -1), np.float32)
            if numbers.shape[1] != self.width or not np.isfinite(numbers).all():
                raise DataError(f"{self.where}: {what} has targets that are not {self.width} finite numbers each")
            return numbers
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            raise DataError(f"{self.where}: {what} has targets of {targets.dtype}, and data.classes wants labels")
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < self._classes:
            wrong = targets[(targets < 0) | (targets >= self._classes)][0]
            raise DataError(f"{self.where}: {what} has label {wrong}, and data.classes allows 0 to {self._classes - 1}")
        return targets.astype(np.int64)


class ByIndex(Indexed):
    """An object with `len` and items (inputs, target), as `Indexed`."""

    def __init__(self, found: Any, path: Path, where: str, classes: int | None) -> None:
        self._found, self.where = found, where
        inputs, targets = _item(found, 0, path, where)
        self._converter = Converter(path, where, classes, inputs[None], np.asarray(targets)[None])
        self.features, self.dtype = self._converter.features, self._converter.dtype
        self.width = self._converter.width

    def read(self, indices: np.ndarray) -> UnitArrays:
        """See `Indexed`."""
        with _LOCK:
            items = [_item(self._found, index, self._converter.path, self.where) for index in indices.tolist()]
        try:
            inputs, targets = np.stack([one for one, _ in items]), np.stack([other for _, other in items])
        except ValueError:
            raise DataError(f"{self.where}: samples {indices[0]} to {indices[-1]} are not of one shape") from None
        return self._converter.arrays(inputs, targets, f"a sample from {indices[0]} to {indices[-1]}")


class InUnits(UnitSource):
    """An object with `units`, samples by name, and `read(name)`, as a `UnitSource`."""

    def __init__(self, found: Any, path: Path, where: str, classes: int | None) -> None:
        self._found, self._path, self._where = found, path, where
        units = found.units
        if not isinstance(units, Mapping) or not units or not all(type(n) is int and n > 0 for n in units.values()):
            raise DataError(f"{where}: units must be a mapping of names to numbers of samples, 1 or more")
        self._names = list(units)
        self.sizes: Sequence[int] = list(units.values())
        inputs, targets = self._read(0)
        self._converter = Converter(path, where, classes, inputs, targets)
        self.features, self.dtype = self._converter.features, self._converter.dtype
        self.width = self._converter.width

    def called(self, unit: int) -> str:
        """See `UnitSource`."""
        return f"{self._where}, unit {self._names[unit]!r}"

    def read(self, unit: int) -> UnitArrays:
        """See `UnitSource`."""
        arrays = self._converter.arrays(*self._read(unit), f"unit {self._names[unit]!r}")
        if len(arrays.targets) != self.sizes[unit]:
            raise DataError(f"{self.called(unit)}: has {len(arrays.targets)} samples, and units say {self.sizes[unit]}")
        return arrays

    def _read(self, unit: int) -> tuple[np.ndarray, np.ndarray]:
        try:
            with _LOCK:
                inputs, targets = self._found.read(self._names[unit])
        except Exception as error:
            raise DataError(str(raised(self._path, f"read({self._names[unit]!r})", error))) from error
        where = f"{self._where}: unit {self._names[unit]!r}"
        return _array(inputs, f"{where} has inputs"), _array(targets, f"{where} has targets")


def open_python(spec: PythonData, folder: Path) -> StreamSets:
    """Load the objects.

    Raises
    ------
    DataError
        A file cannot be run, has no such name, or its object is neither kind of data; or the sets are of other shapes.
    """
    sets: dict[str, UnitSource | None] = {}
    for name in SETS:
        text = getattr(spec, name)
        sets[name] = None if text is None else _source(text, spec, folder)
    train = sets["train"]
    assert train is not None, "the job has one"
    for name, source in sets.items():
        if source is not None and (source.features, source.dtype, source.width) != (
            (train.features, train.dtype, train.width)
        ):
            raise DataError(
                f"{getattr(spec, name)}: samples have inputs {source.features} of {source.dtype}, and those of "
                f"{spec.train} {train.features} of {train.dtype}"
            )
    if train.dtype == np.int64 and spec.scale != 1.0:
        raise DataError(f"{spec.train}: inputs are whole numbers, to which data.scale does not apply: give floats")
    return StreamSets(sets, spec.classes, spec.scale)


def _source(text: str, spec: PythonData, folder: Path) -> UnitSource:
    file, _, name = text.rpartition(":")
    path = resolve(file, folder)
    where = f"{path}:{name}"
    try:
        found, _ = load_object(path, name)
    except ModelError as error:
        raise DataError(str(error)) from error
    if isinstance(found, type) or (callable(found) and not _is_data(found)):
        try:
            found = found()
        except Exception as error:
            raise DataError(str(raised(path, f"{name}()", error))) from error
    if hasattr(found, "units") and hasattr(found, "read"):
        return InUnits(found, path, where, spec.classes)
    if hasattr(found, "__len__") and hasattr(found, "__getitem__"):
        try:
            length = len(found)
        except Exception as error:
            raise DataError(str(raised(path, f"len({name})", error))) from error
        if not length:
            raise DataError(f"{where}: has no samples")
        return Ranges(
            ByIndex(found, path, where, spec.classes),
            np.arange(length),
            unit_size(spec.unit, UNIT, length),
        )
    raise DataError(
        f"{where}: is neither a data set with len() and items (inputs, target), nor one with units and read(name)"
    )


def _is_data(found: Any) -> bool:
    """Whether an object has samples, rather than making one that has."""
    return hasattr(found, "__getitem__") or hasattr(found, "units")


def _item(found: Any, index: int, path: Path, where: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        item = found[index]
    except Exception as error:
        raise DataError(f"{raised(path, f'item {index}', error)} ({where})") from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where}: item {index} is a {type(item).__name__}, must be a pair (inputs, target)")
    return _array(item[0], f"{where}: item {index} has inputs"), _array(item[1], f"{where}: item {index} has targets")


def _array(value: Any, what: str) -> np.ndarray:
    """What a user's object gives, as an array; a torch tensor without its graph, on the host, bfloat16 as float32.

    Raises
    ------
    DataError
        NumPy cannot take it as numbers; `what`: which value it is.
    """
    try:
        try:
            array = np.asarray(_tensor_on_host(value))
        except (TypeError, RuntimeError):  # tensors in a list: to look at each number of all lists would be slow
            array = np.asarray(_on_host(value))
    except Exception as error:  # of whatever the object's own conversion raises
        cause = " ".join(str(error).split())
        kind = type(value).__name__
        raise DataError(f"{what} of {kind} that NumPy cannot take ({cause}): give an array of numbers") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} of {array.dtype} ({type(value).__name__}), must be numbers")
    return array


def _on_host(value: Any) -> Any:
    """As `_tensor_on_host`, also inside lists."""
    return [_on_host(one) for one in value] if isinstance(value, list | tuple) else _tensor_on_host(value)


def _tensor_on_host(value: Any) -> Any:
    """A torch tensor as an array; anything else as it is. torch is not imported for it."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu().resolve_conj()
    tensor = tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def _kept(inputs: np.ndarray, where: str) -> np.dtype:
    """The type that inputs are kept in."""
    if inputs.dtype == np.uint8:
        return np.dtype(np.uint8)
    if inputs.dtype.kind in "iu":
        return np.dtype(np.int64)
    if inputs.dtype.kind in "fb":
        return np.dtype(np.float32)
    raise DataError(f"{where}: inputs are {inputs.dtype}, must be numbers")
