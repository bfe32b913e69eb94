"""Interface of a model: two methods, a third for evaluation, a fourth for class probabilities.

A model holds no parameters. They are stored in one flat float32 vector; the model declares its named tensors
(`parameters`) and receives views into that vector, for the parameters as for their gradient.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dbelief.arrays.backend import Backend

Array = Any
"""A numpy.ndarray, or a cupy.ndarray where the backend is CuPy; inputs may be `SparseRows`."""

Tensors = Mapping[str, Array]
"""By name: a model's parameters, or their gradients."""


@dataclass(frozen=True)
class Batch:
    """A mini-batch of m samples.

    Attributes
    ----------
    inputs : float32, shape (m, features...); or SparseRows, for a model that reads them (`ReadsSparse`)
        Or BagRows, for layers that read tables.
    targets : int64, shape (m,), for classes; or float32, shape (m, k)
    """

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        """Number of samples m."""
        return len(self.inputs)

    def on(self, backend: Backend) -> "Batch":
        """The same on a device; sparse rows are for the host alone.

        Parameters
        ----------
        backend : Backend
            The device's.

        Returns
        -------
        Batch
            Itself on the host, else copies.
        """
        if backend.name == "numpy":
            return self
        return Batch(backend.to_device(self.inputs), backend.to_device(self.targets))


Drawn = Iterator[tuple[str, int, np.ndarray]]
"""Initial values bit by bit: a tensor's name, its first row in what follows, and rows; all of them, in order. Rows are
valid until the next iteration."""


class Model(Protocol):
    """What a replica needs in order to train."""

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw the initial values.

        Parameters
        ----------
        rng : numpy.random.Generator
            Seeded by the job.

        Returns
        -------
        mapping of name to host array, float32
            Its order is the order of the tensors in the flat vector. The same state of `rng` must give the
            same bits: every replica draws them, and they are compared by hash.
        """
        ...

    def loss_and_gradient(self, views: Tensors, batch: Batch, out: Tensors) -> float:
        """Compute the mean loss over a batch, and its gradient.

        Parameters
        ----------
        views : mapping of name to array
            The parameters, shaped as in `parameters`; not to be written to.
        batch : Batch
        out : mapping of name to array
            Same names and shapes; overwritten with the gradient of the MEAN loss over the batch.

        Returns
        -------
        float
            The mean loss over the batch.
        """
        ...


@runtime_checkable
class Evaluates(Protocol):
    """What a model may have besides, for evaluation on validation and test data."""

    def evaluate(self, views: Tensors, batch: Batch) -> tuple[float, int | None]:
        """Evaluate a batch.

        Parameters
        ----------
        views : mapping of name to array
            The parameters; not to be written to.
        batch : Batch

        Returns
        -------
        float
            The SUM of the losses over the batch.
        int or None
            The number of right answers; None where there are none.
        """
        ...


@runtime_checkable
class SharesTensors(Protocol):
    """What a model may have besides, where one tensor has several names (tied weights)."""

    @property
    def also(self) -> Mapping[str, Sequence[str]]:
        """Further names by a tensor's name in `parameters`; model files hold the tensor under each."""
        ...


@runtime_checkable
class HasBuffers(Protocol):
    """What a model may have besides, where some of its tensors are state that passes change, such as running averages.

    `loss_and_gradient` writes the change of such a tensor where others have their gradient; shards add it.
    """

    @property
    def buffers(self) -> Mapping[str, str]:
        """Types of these tensors in a model file, as NumPy calls them, by name; they are the last of `parameters`."""
        ...


@runtime_checkable
class LeavesOut(Protocol):
    """What a model may have besides, where a pass may leave out parameters, as a branch that is not taken.

    Of one without it, all parameters take part in each pass.
    """

    @property
    def absent(self) -> Collection[str]:
        """Names of those without a gradient in the last `loss_and_gradient`, where `out` is 0: no rule changes them."""
        ...


def absent_of(model: Model) -> Collection[str]:
    """Names of the parameters that the last pass of a model left out.

    Parameters
    ----------
    model : Model

    Returns
    -------
    collection of str
        Empty for one without `absent`.
    """
    return getattr(model, "absent", ())  # of `LeavesOut`, whose check would cost each pass microseconds


@runtime_checkable
class ReadsSparse(Protocol):
    """What a model may have besides, where it can take the inputs of a batch as `SparseRows`; others get arrays."""

    @property
    def reads_sparse(self) -> bool:
        """Whether it takes them on the host; arrays it takes in any case."""
        ...


@runtime_checkable
class ReadsColumns(Protocol):
    """What a model may have besides, where rows of one tensor belong to columns of the inputs, as of a linear layer.

    Then it computes the same on some columns of sparse rows (`SparseRows.of`), with those rows of the tensor alone.
    """

    @property
    def column_tensor(self) -> str | None:
        """Name of the tensor whose row j is read, and has a gradient, where column j is not 0; None: there is none."""
        ...


@runtime_checkable
class GivesOutputs(Protocol):
    """Optional part of a model, for predictions on new samples."""

    def last_layer(self, views: Tensors, batch: Batch) -> Array:
        """Compute the outputs of the last layer, before softmax.

        Parameters
        ----------
        views : mapping of name to array
            The parameters.
        batch : Batch
            Its targets have no effect.

        Returns
        -------
        array, shape (m, outputs)
            The model's own until it is called again.
        """
        ...


@runtime_checkable
class HasLogProbabilities(Protocol):
    """Optional part of a model of classes, for the classification of groups of samples."""

    def log_probabilities(self, views: Tensors, batch: Batch) -> Array:
        """Compute the logarithm of each class's probability.

        Parameters
        ----------
        views : mapping of name to array
            The parameters; not to be written to.
        batch : Batch

        Returns
        -------
        array, shape (m, classes)
            The model's own memory, valid until the next call.
        """
        ...
