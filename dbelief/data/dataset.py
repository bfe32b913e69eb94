"""Samples in memory, and mini-batches gathered from them without allocating.

Inputs stay in their stored type (as uint8, pixels take a quarter of the memory) and are scaled when they are gathered:
np.take into a buffer of the stored type, then np.multiply into a float32 buffer. Whole numbers (int64) are not scaled.
Cost of m samples of f features: m * f values read, written, read, written; no allocation grows with m.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dbelief.core.sample_form import SampleForm
from dbelief.nn import Batch

from .samples import AllInMemory, Samples, check_indices


@dataclass(frozen=True, eq=False)
class Split(Samples):
    """One set of samples in memory.

    Attributes
    ----------
    inputs : uint8, float32 or int64, shape (n, features...), C-contiguous
    targets : int64, shape (n,), labels from 0; or float32, shape (n, k); C-contiguous
    scale : float
        Factor that inputs are multiplied by when they are gathered, without unit; 1/255 for pixels.
    groups : int64, shape (n,), or None
        Samples with the same number form a group and have the same label: frames of one recording, for example.
    """

    inputs: np.ndarray
    targets: np.ndarray
    scale: float = 1.0
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.inputs.dtype not in (np.uint8, np.float32, np.int64) or self.inputs.ndim < 2:
            raise ValueError(f"inputs are {_kind(self.inputs)}, must be uint8, float32 or int64 of 2 axes or more")
        if self.inputs.dtype == np.int64 and self.scale != 1.0:
            raise ValueError(f"inputs of int64 have no scale, here {self.scale}")
        axes = {np.dtype(np.int64): 1, np.dtype(np.float32): 2}
        if axes.get(self.targets.dtype) != self.targets.ndim:
            raise ValueError(f"targets are {_kind(self.targets)}, must be int64 of 1 axis or float32 of 2")
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs, but {len(self.targets)} targets")
        groups = self.groups
        if groups is not None and not (groups.dtype == np.int64 and groups.shape == self.targets.shape):
            raise ValueError(f"groups are {_kind(groups)}, must be int64 as many as the targets, which are labels")
        if not (self.inputs.flags.c_contiguous and self.targets.flags.c_contiguous):
            raise ValueError("inputs and targets must be C-contiguous")  # np.take would copy them completely each time

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.inputs)

    @property
    def features(self) -> tuple[int, ...]:
        """See `Samples`."""
        return tuple(self.inputs.shape[1:])

    @property
    def whole(self) -> bool:
        """See `Samples`."""
        return self.inputs.dtype == np.int64

    @property
    def nbytes(self) -> int:
        """See `Samples`."""
        return self.inputs.nbytes + self.targets.nbytes

    def head(self, n: int) -> "Split":
        """See `Samples`; these are views, without groups."""
        return Split(self.inputs[:n], self.targets[:n], self.scale)

    def largest(self, n: int) -> np.ndarray:
        """See `Samples`."""
        first = self.head(n)
        inputs = first.gather(np.arange(len(first)), first.buffer(len(first))).inputs
        found: np.ndarray = np.maximum(inputs.max(axis=0), -inputs.min(axis=0))
        return found

    def buffer(self, size: int) -> "BatchBuffer":
        """See `Samples`."""
        return BatchBuffer(self, size)

    def gather(self, indices: np.ndarray, out: "BatchBuffer") -> Batch:
        """See `Samples`: inputs float32, or int64 as stored."""
        check_indices(indices, out.size, len(self))
        out.check(self)
        m = len(indices)
        stored, inputs, targets = out.stored[:m], out.inputs[:m], out.targets[:m]
        # mode="raise" would buffer `out`; the indices were checked above.
        np.take(self.inputs, indices, axis=0, out=stored, mode="clip")
        np.take(self.targets, indices, axis=0, out=targets, mode="clip")
        if stored.dtype == np.uint8 or self.scale != 1.0:
            np.multiply(stored, np.float32(self.scale), out=inputs, dtype=np.float32)
        return Batch(inputs, targets)


class BatchBuffer(AllInMemory):
    """Buffer for a mini-batch of up to `size` samples of a split; not thread-safe.

    Attributes
    ----------
    size : int
    stored : as the split's inputs, shape (size, features...)
        The same memory as `inputs`, but for uint8.
    inputs : float32, or int64 as the split's, shape (size, features...)
    targets : as the split's targets, (size,) or (size, k)
    """

    def __init__(self, split: Split, size: int) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, must be 1 or more")
        self.size = size
        shape, kept = (size, *split.inputs.shape[1:]), split.inputs.dtype
        self.inputs = np.empty(shape, np.float32 if kept == np.uint8 else kept)
        self.stored = np.empty(shape, kept) if kept == np.uint8 else self.inputs
        self.targets = np.empty((size, *split.targets.shape[1:]), split.targets.dtype)

    def check(self, split: Split) -> None:
        """Raise ValueError unless the buffer fits samples of this split."""
        for mine, theirs, what in (
            (self.stored, split.inputs, "inputs"),
            (self.targets, split.targets, "targets"),
        ):
            if mine.dtype != theirs.dtype or mine.shape[1:] != theirs.shape[1:]:
                raise ValueError(f"the buffer holds {what} like {_kind(mine)}, the split has {_kind(theirs)}")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test sets of a job.

    Attributes
    ----------
    train, validation, test : Samples or None
        None where it was not requested, or does not exist.
    classes : int or None
        Number of labels; None where targets are numbers or there is no data.
    features : tuple of int
        Shape of one sample's inputs; () where there is no data.
    names : tuple of str, or None
        Names of class 0, 1, ... in the source; None where it uses these numbers.
    columns : tuple of str, or None
        Names of the inputs in the source; None where they have none.
    encoder : mapping, or None
        State of the `TableEncoder` that made the inputs; None where they are the source's own numbers.
    zero_based : bool
        Whether indices of LIBSVM text count from 0.
    notes : tuple of str
        What a user must know of how the source was read.
    objects : str
        See `SampleForm`.
    """

    train: Samples | None
    validation: Samples | None
    test: Samples | None
    classes: int | None
    features: tuple[int, ...]
    names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    encoder: Mapping[str, Any] | None = None
    zero_based: bool = False
    notes: tuple[str, ...] = ()
    objects: str = ""

    def dense(self) -> "Dataset":
        """The same, with sets whose inputs are arrays: see `Samples.dense`."""
        sets = {name: split.dense() for name in ("train", "validation", "test") if (split := getattr(self, name))}
        return replace(self, **sets)

    @property
    def form(self) -> SampleForm | None:
        """The form of the samples, without names that are too long for it; None without data."""
        split, outputs = self.train or self.validation or self.test, self.outputs
        if split is None or outputs is None:
            return None
        form = SampleForm(
            self.features,
            outputs,
            self.classes,
            split.scale,
            self.names,
            self.columns,
            split.whole,
            encoder=self.encoder,
            zero_based=self.zero_based,
            objects=self.objects,
        )
        return form.shortened()

    @property
    def outputs(self) -> int | None:
        """Number of model outputs per sample: the classes, or the width of the targets; None without data."""
        widths = [s.width for s in (self.train, self.validation, self.test) if s and s.width is not None]
        return self.classes if self.classes is not None or not widths else widths[0]


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"
