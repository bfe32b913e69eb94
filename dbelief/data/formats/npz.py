"""Arrays in a NumPy .npz file; values are used as stored, except that wider floats become float32.

The file may also contain `groups`: samples with the same number form a group, such as the frames of one recording. A
group is never split between sets, and is evaluated as a unit too.
"""

import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from dbelief.data.dataset import Dataset, Split
from dbelief.data.files.data_file import DataFile, find_file, objects_digest
from dbelief.data.files.errors import cause
from dbelief.data.samples import SETS
from dbelief.data.splits import cut
from dbelief.data.validation import classes, finite, one_label_each
from dbelief.errors import DataError
from dbelief.job import NpzData

Pair = tuple[np.ndarray, np.ndarray]
Held = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Inputs, targets, and groups where there are any."""


def load_npz(spec: NpzData, folder: Path, need: Collection[str]) -> Dataset:
    """Load inputs, targets and groups; sets that are missing in the file are split off the others by shares.

    Raises
    ------
    DataError
    """
    file = find_file(spec.file, folder)
    held = _sets(_arrays_of(file), spec, str(file), _held)
    sets = {name: (inputs, targets) for name, (inputs, targets, _) in held.items()}
    groups = {name: its for name, (_, _, its) in held.items() if its is not None}
    return replace(dataset(sets, str(file), need, groups=groups), objects=objects_digest([file]))


def npz_sizes(spec: NpzData, folder: Path) -> tuple[int, int, int]:
    """Samples of the three sets; of inputs only the headers are read.

    Raises
    ------
    DataError
    """
    file = find_file(spec.file, folder)
    held = _sets(_arrays_of(file, without="inputs"), spec, str(file), _counted)
    train, validation, test = (len(held[name][0]) if name in held else 0 for name in SETS)
    return train, validation, test


def _arrays_of(file: DataFile, without: str = "") -> dict[str, np.ndarray]:
    with file.open_whole() as opened:
        try:
            return read_arrays(opened, str(file), without)
        except OSError as error:
            raise DataError(f"{file}: {cause(error)}") from None


def read_arrays(file: IO[bytes], where: str, without: str = "") -> dict[str, np.ndarray]:
    """Read all arrays of an open .npz file.

    Arrays whose name ends in `without`, unless that is empty, are not loaded: only their header is read, and an array
    with the same number of rows and no values is returned.

    Raises
    ------
    DataError
        The file is not an .npz file, is truncated, or holds Python objects.
    """
    if file.read(4) != b"PK\x03\x04":
        raise DataError(f"{where}: not an .npz file")
    file.seek(0)
    arrays: dict[str, Any] = {}
    name = ""
    try:
        with np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = _rows(archive, name) if without and name.endswith(without) else archive[name]
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{where}: the .npz file is cut short or damaged ({cause(error)})") from None
    except (ValueError, KeyError, MemoryError, NotImplementedError, OSError) as error:
        objects = f"{name} holds Python objects: save it as numbers, .astype('float32')"
        what = objects if "Object arrays" in str(error) else cause(error)
        raise DataError(f"{where}: holds an array that cannot be read ({what})") from None
    # Members that are not arrays are returned as bytes; they are neither inputs nor targets.
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _rows(archive: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """An array with as many rows as the one of this name, and no values."""
    assert archive.zip is not None
    with archive.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, _ = header(file)
    return np.empty((*shape[:1], 0), np.float32)


def dataset(
    sets: dict[str, Pair],
    where: str,
    need: Collection[str],
    scale: float = 1.0,
    names: tuple[str, ...] | None = None,
    groups: Mapping[str, np.ndarray] = {},
) -> Dataset:
    """Check the sets of inputs and targets for consistency, and make a dataset of the needed ones.

    `names` are the source's names of the classes, `groups` the sets' groups, where there are any.

    Raises
    ------
    DataError
    """
    train = sets["train"]
    for name, (inputs, targets) in sets.items():
        for what, mine, first in (("inputs", inputs, train[0]), ("targets", targets, train[1])):
            if (mine.dtype, mine.shape[1:]) != (first.dtype, first.shape[1:]):
                kinds = f"{mine.dtype} of shape {mine.shape}, in training {first.dtype} of shape {first.shape}"
                raise DataError(f"{where}: {name} {what} are {kinds}")
    if not len(train[0]):
        raise DataError(f"{where}: there are no training samples")
    k = None
    if train[1].ndim == 1:
        k = classes(train[1], {name: pair[1] for name, pair in sets.items() if name != "train"}, where, names)
    wanted = [name for name in sets if name in need and len(sets[name][0])]
    made = {name: Split(*sets[name], scale, groups.get(name)) for name in wanted}
    class_names = None if names is None or names == tuple(map(str, range(len(names)))) else names
    return Dataset(made.get("train"), made.get("validation"), made.get("test"), k, train[0].shape[1:], class_names)


def _sets(
    arrays: dict[str, np.ndarray], spec: NpzData, where: str, take: Callable[[dict[str, np.ndarray], str, str], Held]
) -> dict[str, Held]:
    """Find the sets in a file's arrays, and split off the missing ones; `take` checks and converts each."""
    named = {f"{name}_{what}" for name in SETS for what in ("inputs", "targets")}
    whole = {"inputs", "targets"} <= arrays.keys()
    parted = {"train_inputs", "train_targets"} <= arrays.keys()
    if whole == parted or (whole and named & arrays.keys()):
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{where}: must hold inputs and targets, or train_inputs and train_targets; it holds {found}")
    if whole:
        return _cut(take(arrays, "", where), spec.validation, spec.test, where)
    sets = {name: take(arrays, f"{name}_", where) for name in SETS if _has(arrays, name, where)}
    grouped = [name for name in sets if f"{name}_groups" in arrays]
    if 0 < len(grouped) < len(sets):
        lacking = next(name for name in sets if name not in grouped)
        raise DataError(f"{where}: holds {grouped[0]}_groups, but no {lacking}_groups")
    validation = 0 if "validation" in sets else spec.validation
    test = 0 if "test" in sets else spec.test
    return {**_cut(sets["train"], validation, test, where), **{n: sets[n] for n in sets if n != "train"}}


def _has(arrays: dict[str, np.ndarray], name: str, where: str) -> bool:
    inputs, targets = f"{name}_inputs" in arrays, f"{name}_targets" in arrays
    if inputs != targets:
        there, lacking = ("inputs", "targets") if inputs else ("targets", "inputs")
        raise DataError(f"{where}: holds {name}_{there}, but no {name}_{lacking}")
    return inputs


def _cut(held: Held, validation: float, test: float, where: str) -> dict[str, Held]:
    """Split samples into sets, by complete groups where there are any: then shares and numbers are of groups."""
    inputs, targets, groups = held
    if groups is None:
        parts = vars(cut(len(inputs), targets if targets.ndim == 1 else None, validation, test, where))
        return {name: (inputs[rows], targets[rows], None) for name, rows in parts.items()}
    found, firsts, place = np.unique(groups, return_index=True, return_inverse=True)
    of_groups = vars(cut(len(found), targets[firsts], validation, test, f"{where}: groups"))
    parts = {name: np.flatnonzero(np.isin(place, part)) for name, part in of_groups.items()}
    return {name: (inputs[rows], targets[rows], groups[rows]) for name, rows in parts.items()}


def _held(arrays: dict[str, np.ndarray], prefix: str, where: str) -> Held:
    inputs, targets = _pair(arrays, prefix, where)
    return inputs, targets, _groups(arrays, prefix, targets, where)


def _counted(arrays: dict[str, np.ndarray], prefix: str, where: str) -> Held:
    """One set without its inputs; only lengths are checked."""
    inputs, targets = arrays[f"{prefix}inputs"], arrays[f"{prefix}targets"]
    if not targets.ndim or len(inputs) != len(targets):
        raise DataError(f"{where}: {prefix}inputs are {len(inputs)}, {prefix}targets have shape {targets.shape}")
    labels = targets if targets.dtype.kind in "iu" else targets.reshape(len(targets), -1)
    return inputs, labels, arrays.get(f"{prefix}groups")


def _groups(arrays: dict[str, np.ndarray], prefix: str, targets: np.ndarray, where: str) -> np.ndarray | None:
    """Read groups, if there are any, and check that each has one label."""
    groups, at = arrays.get(f"{prefix}groups"), f"{where}: {prefix}groups"
    if groups is None:
        return None
    if targets.ndim != 1:
        raise DataError(f"{at} need targets that are class labels")
    if groups.dtype.kind not in "iu" or groups.shape != targets.shape:
        raise DataError(f"{at} are {groups.dtype} of shape {groups.shape}, must be integers of shape {targets.shape}")
    if len(groups) and groups.max() > np.iinfo(np.int64).max:
        raise DataError(f"{at} hold number {groups.max()}, which is out of range")
    groups = np.ascontiguousarray(groups, np.int64)
    one_label_each(groups, targets, at)
    return groups


def _pair(arrays: dict[str, np.ndarray], prefix: str, where: str) -> Pair:
    """Read inputs and targets, and convert them to the types of a split."""
    inputs, targets = arrays[f"{prefix}inputs"], arrays[f"{prefix}targets"]
    at = f"{where}: {prefix}inputs"
    if inputs.ndim < 2 or not all(inputs.shape[1:]):
        raise DataError(f"{at} have shape {inputs.shape}, must be (n, features...)")
    if inputs.dtype.kind not in "uif":
        raise DataError(f"{at} are {inputs.dtype}, must be numbers; cast with .astype('float32')")
    if not targets.ndim or len(inputs) != len(targets):
        raise DataError(f"{at} are {len(inputs)}, {prefix}targets have shape {targets.shape}")
    inputs = _float32(inputs, at) if inputs.dtype.kind == "f" else _whole(inputs, at)
    at = f"{where}: {prefix}targets"
    if targets.dtype.kind == "f" and targets.ndim in (1, 2) and all(targets.shape[1:]):
        return inputs, _float32(targets.reshape(len(targets), -1), at)
    if targets.dtype.kind not in "iu" or targets.ndim != 1:
        kind = f"{targets.dtype} of shape {targets.shape}"
        raise DataError(f"{at} are {kind}, must be labels (integers, (n,)) or numbers (floats, (n,) or (n, k))")
    if len(targets) and targets.max() > np.iinfo(np.int64).max:
        raise DataError(f"{at} hold label {targets.max()}, which is out of range")
    return inputs, np.ascontiguousarray(targets, np.int64)


def _whole(array: np.ndarray, where: str) -> np.ndarray:
    """Bytes as they are, other whole numbers as int64."""
    if len(array) and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{where} hold {array.max()}, which is out of range")
    return np.ascontiguousarray(array, np.uint8 if array.dtype == np.uint8 else np.int64)


def _float32(array: np.ndarray, where: str) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):  # infinite values are detected right after
        made = np.ascontiguousarray(array, np.float32)
    finite(made, where)
    return made
