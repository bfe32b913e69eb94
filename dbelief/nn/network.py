"""A network: layers one after another, and a loss. Forward, backward, one flat gradient.

    a_0 = inputs, a_i = layer_i(a_{i-1}), L = mean over the batch of loss(a_n, targets)

Backward runs from the loss to the first layer that has parameters, and no further: the gradient with
respect to the inputs is not needed. Parameter gradients are written straight into the caller's arrays. Every array
in between is a buffer kept from step to step (workspace.py): a step in the steady state allocates no array,
but for a few numbers per sample where a loss picks a column per row.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.errors import ModelError

from .bag_rows import BagRows, BatchRows, ReadRows
from .initial_values import UniformTensor, UniformValues, draw_uniform
from .layers.dropout import Dropout, batch_key
from .layers.embedding import Embedding
from .layers.layer import Dense, Layer, Shape
from .layers.table_bag import FactorizationMachine, TableBag
from .losses import Loss
from .model import Array, Batch, Drawn, Tensors
from .sparse_rows import SparseRows
from .workspace import Workspace

# NumPy copies a broadcast operand (a bias) into a scratch buffer of up to this many elements, allocated at
# each call. Its default, 8,192, exceeds many a layer's whole batch; with 256 a step is no slower, and leaner.
NUMPY_BUFFER = 256
NO_NUMBERS: Shape = (0,)
"""Features of samples that are bags of keys."""
_MOST_NAMES = 8
"""Classes that an error message names."""


@dataclass(frozen=True)
class Stage:
    """A layer in its place."""

    layer: Layer
    name: str  # "dense1", "relu1", ...: counted per kind, from 1
    inputs: Shape
    outputs: Shape
    before_relu: bool
    parameters: tuple[str, ...]  # names in the order in which the layer takes them
    work: Workspace  # the layer's own, which also holds its outputs and dL/dinputs


class Network:
    """Layers and a loss as a model (`Model`, `Evaluates`, `HasLogProbabilities` and `ReadsSparse`).

    Its tensors are named dense1.weight (inputs, units), dense1.bias (units,), dense2.weight and so on,
    counting dense layers from 1 (and so each other kind). What the last layer gives is read as (m, outputs). It
    keeps buffers: one thread at a time.

    Parameters
    ----------
    layers : sequence of Layer
        At least one with parameters.
    loss : Loss
    features : int or tuple of int
        Shape of a sample's inputs; a number n is (n,), and (height, width) is an image of one channel. Batches may
        have their numbers along other axes, and may be sparse where the first layer is dense, on the host.
        `NO_NUMBERS`: samples are bags of keys, and the first layer reads tables.
    classes : int or None
        Where given, the last layer must have as many outputs, or one for the logistic loss; None for the square loss,
        whose targets' width is checked batch by batch.
    backend : Backend
        Where views, batches and gradients live.
    seed : int
        Of dropout's masks.
    names : sequence of str
        Names of the classes, for an error message.

    Attributes
    ----------
    stages
        The layers in their places.
    reads
        Columns that each table is read for, by its name; empty for a network without tables.

    Raises
    ------
    ModelError
        There is nothing to train, a layer cannot take what comes, or the last one does not match the classes.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        features: int | Shape,
        classes: int | None,
        backend: Backend,
        seed: int = 0,
        names: Sequence[str] = (),
    ) -> None:
        self.features = _image_or_numbers(features)
        self.loss = loss
        self.seed = seed
        self._work = Workspace(backend)
        self.stages = tuple(stages(layers, self.features, backend))
        trainable = [place for place, stage in enumerate(self.stages) if stage.parameters]
        if not trainable:
            raise ModelError("a network needs at least one dense layer, conv or local: there is nothing to train")
        self._dense = self.stages[trainable[0]].parameters[0]
        self.reads = _reads(self.stages)
        self._check_bags()
        self._first = 0 if self.reads else trainable[0]
        self._read_rows: ReadRows | None = None
        self._rows: BatchRows | None = None
        for stage in self.stages[1:]:
            if isinstance(stage.layer, Embedding):
                raise ModelError(f"layer {stage.name}: takes the inputs, so it must be the first layer")
        self.outputs = math.prod(self.stages[-1].outputs)
        if classes is not None and self.outputs != (expected := loss.outputs(classes)):
            last, wanted = self.stages[-1].name, f"{classes} classes" if expected == classes else f"{expected} output"
            raise ModelError(f"layer {last}: has {self.outputs} outputs, expected {wanted}{_listed(names)}")

    def _check_bags(self) -> None:
        """Check that layers read tables if samples are bags of keys, and the first one does."""
        first = self.stages[0]
        if self.reads and self.features != NO_NUMBERS:
            raise ModelError(f"layer {first.name}: tables are read by keys, and samples are numbers (data.source bags)")
        if self.features == NO_NUMBERS and not isinstance(first.layer, TableBag | FactorizationMachine):
            raise ModelError(f"layer {first.name}: samples are bags of keys: it must be embedding_bag or fm")

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw initial values on the host: float32, in the order of the layers; biases are zero."""
        return {name: values for name, _, values in self.drawn(rng)}

    def drawn(self, rng: np.random.Generator) -> Drawn:
        """Draw the same, tensor by tensor."""
        for name, shape, limit in self._described():
            if limit is None:
                yield name, 0, np.zeros(shape, np.float32)
            else:
                yield name, 0, draw_uniform(rng, limit, np.empty(shape, np.float32))

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes of the tensors by name, in their order; nothing is drawn."""
        return {name: shape for name, shape, _ in self._described()}

    def initial_values(self, seed: int) -> UniformValues:
        """What `parameters` draws with `numpy.random.default_rng(seed)`, any range of the flat vector by itself."""
        return UniformValues([UniformTensor(math.prod(shape), limit) for _, shape, limit in self._described()], seed)

    def _described(self) -> Iterator[tuple[str, Shape, float | None]]:
        """Name and shape of each tensor, and the limit of the first one's numbers in a layer; None: zeros."""
        for stage in self.stages:
            limit = stage.layer.limit(stage.inputs, stage.before_relu)
            shapes = stage.layer.shapes(stage.inputs)
            for place, (name, shape) in enumerate(zip(stage.parameters, shapes, strict=True)):
                yield name, shape, None if place else limit

    @property
    def reads_sparse(self) -> bool:
        """Whether the first layer is dense: see `ReadsSparse`."""
        return isinstance(self.stages[0].layer, Dense)

    @property
    def column_tensor(self) -> str | None:
        """See `ReadsColumns`: the weight of a first layer dense; None with dropout, whose masks depend on inputs."""
        if not self.reads_sparse or any(isinstance(stage.layer, Dropout) for stage in self.stages):
            return None
        return self.stages[0].parameters[0]

    def attach(self, read_rows: ReadRows) -> None:
        """Read rows of tables by this function from now on."""
        self._read_rows = read_rows

    def take_rows(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        """(n,) keys and (n, width) gradients by table, of the last `loss_and_gradient`; they are forgotten here."""
        rows, self._rows = self._rows, None
        return {} if rows is None else {table: (keys, rows.gradients[table]) for table, keys in rows.keys.items()}

    def loss_and_gradient(self, views: Tensors, batch: Batch, out: Tensors) -> float:
        """Give the mean loss, and write its gradient into `out`.

        On CuPy this waits for the device twice a step: when classes are checked, and for the loss, after the
        whole backward pass has been queued.

        Raises
        ------
        ModelError
            The batch does not fit the first layer or the loss.
        DataError
            A class is out of range.
        ValueError
            The batch is empty.
        """
        with step_settings():
            activations = self._forward(views, batch, training=True)
            total, slope = self.loss_and_slope(activations[-1], batch.targets)
            self._backward(views, activations, slope, out)
            return total / len(batch)

    def evaluate(self, views: Tensors, batch: Batch) -> tuple[float, int | None]:
        """Give the sum of the losses, and the number of right answers (None for the square loss)."""
        with step_settings():
            return self.judge(self._forward(views, batch, training=False)[-1], batch.targets)

    def last_layer(self, views: Tensors, batch: Batch) -> Array:
        """Compute the outputs of the last layer, one for each class, as a buffer until called again: `GivesOutputs`."""
        with step_settings():
            outputs = self._flat(self._forward(views, batch, training=False)[-1])
            return self.loss.by_class(self._work, outputs)

    def log_probabilities(self, views: Tensors, batch: Batch) -> Array:
        """Give log p of each class, (m, outputs), as the loss reads the outputs: a buffer until called again.

        Raises
        ------
        ModelError
            The loss knows no classes.
        """
        with step_settings():
            outputs = self._forward(views, batch, training=False)[-1]
            return self.loss.log_probabilities(self._work, self._flat(outputs))

    def loss_and_slope(self, outputs: Array, targets: Array) -> tuple[float, Array]:
        """Give the SUM of the losses of what the last layer gave, and the gradient of their mean, of its shape."""
        flat = self._flat(outputs)
        slope = self._slope(outputs)
        total = self.loss.forward(self._work, flat, targets, slope)
        self.loss.backward(self._work, targets, slope)
        return float(total), slope.reshape(outputs.shape)

    def judge(self, outputs: Array, targets: Array) -> tuple[float, int | None]:
        """Give the sum of the losses of what the last layer gave, and the number of right answers, or None."""
        flat = self._flat(outputs)
        total = self.loss.forward(self._work, flat, targets, self._slope(outputs))
        return float(total), self.loss.right(self._work, flat, targets)

    def _forward(self, views: Tensors, batch: Batch, *, training: bool) -> list[Array]:
        """Give the inputs and every layer's outputs."""
        kind = views[self._dense].dtype
        x = self.checked_inputs(kind, batch)
        rows = self._rows_of(x) if self.reads else None
        self._rows = rows if training else None
        activations = [x]
        for place, stage in enumerate(self.stages):
            if isinstance(stage.layer, Dropout):
                stage.work.key = batch_key(stage.work, x, self.seed, place) if training else None
            stage.work.tables = rows
            y = stage.work.array("y", (len(x), *stage.outputs), kind)
            own = [views[name] for name in stage.parameters]
            stage.layer.forward(stage.work, activations[-1], own, y)
            activations.append(y)
        return activations

    def _rows_of(self, bags: BagRows) -> BatchRows:
        assert self._read_rows is not None, "attach() comes first"
        return BatchRows(bags, self.reads, self._read_rows)

    def _backward(self, views: Tensors, activations: Sequence[Array], dy: Array, out: Tensors) -> None:
        """Write every parameter's gradient; `activations` as from `_forward`, dy = dL/d(last of them)."""
        for place in reversed(range(self._first, len(self.stages))):
            stage, x, y = self.stages[place], activations[place], activations[place + 1]
            dx = stage.work.array("dx", x.shape, x.dtype) if place > self._first else None
            own = [views[name] for name in stage.parameters]
            gradients = [out[name] for name in stage.parameters]
            stage.layer.backward(stage.work, x, y, dy, own, gradients, dx)
            dy = dx

    def _flat(self, outputs: Array) -> Array:
        return outputs.reshape(len(outputs), self.outputs)

    def _slope(self, outputs: Array) -> Array:
        return self._work.array("loss.slope", (len(outputs), self.outputs), outputs.dtype)

    def checked_inputs(self, kind: np.dtype, batch: Batch) -> Array:
        """Give the inputs as (m, *features), or sparse, once batch, layers and loss, of this type, are known to fit."""
        m = len(batch)
        if m == 0:
            raise ValueError("an empty batch has no mean loss")
        first = self.stages[0].name
        got, expected = math.prod(batch.inputs.shape[1:]), math.prod(self.features)
        if got != expected:
            raise ModelError(f"layer {first}: got {got} features per sample, expected {expected}")
        if self.reads and not isinstance(batch.inputs, BagRows):
            raise ModelError(f"layer {first}: got numbers, expected bags of keys")
        x = batch.inputs if self.reads else self._checked_numbers(kind, batch.inputs)
        if len(batch.targets) != m:
            raise ModelError(f"loss {self.loss.name}: got {len(batch.targets)} targets for {m} samples")
        self.loss.check(self.outputs, batch.targets)
        return x

    def _checked_numbers(self, kind: np.dtype, x: Array) -> Array:
        """Give inputs that are no bags as (m, *features), or sparse."""
        first = self.stages[0].name
        if not isinstance(x, SparseRows):
            x = x.reshape(len(x), *self.features)
        elif not self.reads_sparse:
            raise ModelError(f"layer {first}: got sparse rows, which only a first layer dense reads")
        looks_up = isinstance(self.stages[0].layer, Embedding)
        if looks_up and x.dtype.kind != "i":
            raise ModelError(f"layer {first}: got inputs of {x.dtype}, expected whole numbers (int64)")
        if not looks_up and x.dtype != kind:
            hint = "; whole numbers are for an embedding, or store them as float32" if x.dtype.kind == "i" else ""
            raise ModelError(f"layer {first}: got inputs of {x.dtype}, expected {kind} as its parameters{hint}")
        return x


@contextmanager
def step_settings() -> Iterator[None]:
    """NumPy's settings during a step; leaving restores the caller's."""
    # A loss that is not finite is for the caller to name; a warning per step would only bury it.
    with np.errstate(over="ignore", invalid="ignore"):
        np.setbufsize(NUMPY_BUFFER)
        yield


def _image_or_numbers(features: int | Shape) -> Shape:
    """Shape of a sample as layers see it: of two axes it is an image of one channel."""
    shape = (features,) if isinstance(features, int) else features
    return (*shape, 1) if len(shape) == 2 else shape


def stages(layers: Sequence[Layer], features: Shape, backend: Backend) -> Iterator[Stage]:
    """Name the layers, and chain their shapes."""
    seen: dict[str, int] = {}
    inputs = features
    for place, layer in enumerate(layers):
        seen[layer.kind] = seen.get(layer.kind, 0) + 1
        name = f"{layer.kind}{seen[layer.kind]}"
        before_relu = place + 1 < len(layers) and layers[place + 1].kind == "relu"
        own = tuple(f"{name}.{tensor}" for tensor in layer.tensors)
        try:
            outputs = layer.outputs(inputs)
        except ModelError as error:
            raise ModelError(f"layer {name}: {error}") from error
        yield Stage(layer, name, inputs, outputs, before_relu, own, Workspace(backend))
        inputs = outputs


def _reads(stages: Sequence[Stage]) -> Mapping[str, Sequence[str]]:
    """Columns by table, of all layers that read it."""
    found: dict[str, dict[str, None]] = {}
    for stage in stages:
        if isinstance(stage.layer, TableBag | FactorizationMachine):
            for table, columns in stage.layer.reads.items():
                found.setdefault(table, {}).update(dict.fromkeys(columns))
    return {table: tuple(columns) for table, columns in found.items()}


def _listed(names: Sequence[str]) -> str:
    """Names of classes for a message: a mistyped label is a class of its own."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f": {', '.join(map(repr, names[:_MOST_NAMES]))}{more}" if names else ""
