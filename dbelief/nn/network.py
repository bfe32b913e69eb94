"""A network: layers one after another, and a loss. Forward, backward, one flat gradient.

    a_0 = inputs, a_i = layer_i(a_{i-1}), L = mean over the batch of loss(a_n, targets)

Backward runs from the loss to the first layer that has parameters, and no further: nobody needs the gradient
with respect to the inputs. Parameter gradients are written straight into the caller's arrays. Every array
in between is a buffer kept from step to step (workspace.py): a step in the steady state allocates no array,
but for a few numbers per sample where softmax cross-entropy picks a column per row.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dbelief.backend import Backend
from dbelief.errors import ModelError

from .dropout import Dropout, batch_key
from .layers import Layer, Shape
from .losses import Loss
from .model import Array, Batch
from .workspace import Workspace

# NumPy copies a broadcast operand (a bias) into a scratch buffer of up to this many elements, allocated at
# each call. Its default, 8,192, exceeds many a layer's whole batch; with 256 a step is no slower, and leaner.
NUMPY_BUFFER = 256


@dataclass(frozen=True)
class _Stage:
    """A layer in its place."""

    layer: Layer
    name: str  # "dense1", "relu1", ...: counted per kind, from 1
    inputs: Shape
    outputs: Shape
    before_relu: bool
    parameters: tuple[str, ...]  # names in the order in which the layer takes them
    work: Workspace  # the layer's own, which also holds its outputs and dL/dinputs


class Network:
    """Layers and a loss as a model (`Model` and `Evaluates`).

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
        have their numbers along other axes.
    classes : int or None
        Where given, the last layer must have as many outputs; None for the square loss, whose targets'
        width is checked batch by batch.
    backend : Backend
        Where views, batches and gradients live.
    seed : int
        Of dropout's masks.

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
    ) -> None:
        self.features = _image_or_numbers(features)
        self.loss = loss
        self._seed = seed
        self._work = Workspace(backend)
        self._stages = tuple(_stages(layers, self.features, backend))
        trainable = [place for place, stage in enumerate(self._stages) if stage.parameters]
        if not trainable:
            raise ModelError("a network needs at least one dense layer or convolution: there is nothing to train")
        self._first = trainable[0]
        self.outputs = math.prod(self._stages[-1].outputs)
        if classes is not None and self.outputs != classes:
            last = self._stages[-1].name
            raise ModelError(f"layer {last}: has {self.outputs} outputs, expected {classes} classes")

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw initial values on the host: float32, in the order of the layers; biases are zero."""
        drawn: dict[str, np.ndarray] = {}
        for stage in self._stages:
            values = stage.layer.initial(stage.inputs, rng, stage.before_relu)
            drawn.update(zip(stage.parameters, values, strict=True))
        return drawn

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
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
        with _settings():
            activations = self._forward(views, batch, training=True)
            slope = self._slope(activations[-1])
            total = self.loss.forward(self._work, self._flat(activations[-1]), batch.targets, slope)
            self.loss.backward(self._work, batch.targets, slope)
            self._backward(views, activations, slope.reshape(activations[-1].shape), out)
            return float(total) / len(batch)

    def evaluate(self, views: Mapping[str, Array], batch: Batch) -> tuple[float, int]:
        """Give the sum of the losses, and the number of right answers (0 for the square loss)."""
        with _settings():
            outputs = self._flat(self._forward(views, batch, training=False)[-1])
            total = self.loss.forward(self._work, outputs, batch.targets, self._slope(outputs))
            return float(total), self.loss.right(self._work, outputs, batch.targets)

    def _forward(self, views: Mapping[str, Array], batch: Batch, *, training: bool) -> list[Array]:
        """Give the inputs and every layer's outputs."""
        x = self._checked_inputs(views, batch)
        activations = [x]
        for place, stage in enumerate(self._stages):
            if isinstance(stage.layer, Dropout):
                stage.work.key = batch_key(stage.work, x, self._seed, place) if training else None
            y = stage.work.array("y", (len(x), *stage.outputs), x.dtype)
            own = [views[name] for name in stage.parameters]
            stage.layer.forward(stage.work, activations[-1], own, y)
            activations.append(y)
        return activations

    def _backward(
        self, views: Mapping[str, Array], activations: Sequence[Array], dy: Array, out: Mapping[str, Array]
    ) -> None:
        """Write every parameter's gradient; `activations` as from `_forward`, dy = dL/d(last of them)."""
        for place in reversed(range(self._first, len(self._stages))):
            stage, x, y = self._stages[place], activations[place], activations[place + 1]
            dx = stage.work.array("dx", x.shape, x.dtype) if place > self._first else None
            own = [views[name] for name in stage.parameters]
            gradients = [out[name] for name in stage.parameters]
            stage.layer.backward(stage.work, x, y, dy, own, gradients, dx)
            dy = dx

    def _flat(self, outputs: Array) -> Array:
        return outputs.reshape(len(outputs), self.outputs)

    def _slope(self, outputs: Array) -> Array:
        return self._work.array("loss.slope", (len(outputs), self.outputs), outputs.dtype)

    def _checked_inputs(self, views: Mapping[str, Array], batch: Batch) -> Array:
        """Give the inputs as (m, *features) once batch, layers and loss are known to fit."""
        m = len(batch)
        if m == 0:
            raise ValueError("an empty batch has no mean loss")
        first = self._stages[0].name
        got, expected = math.prod(batch.inputs.shape[1:]), math.prod(self.features)
        if got != expected:
            raise ModelError(f"layer {first}: got {got} features per sample, expected {expected}")
        x = batch.inputs.reshape(m, *self.features)
        kind = views[self._stages[self._first].parameters[0]].dtype
        if x.dtype != kind:
            raise ModelError(f"layer {first}: got inputs of {x.dtype}, expected {kind} as its parameters")
        if len(batch.targets) != m:
            raise ModelError(f"loss {self.loss.name}: got {len(batch.targets)} targets for {m} samples")
        self.loss.check(self.outputs, batch.targets)
        return x


@contextmanager
def _settings() -> Iterator[None]:
    """NumPy's settings during a step; leaving restores the caller's."""
    # A loss that is not finite is for the caller to name; a warning per step would only bury it.
    with np.errstate(over="ignore", invalid="ignore"):
        np.setbufsize(NUMPY_BUFFER)
        yield


def _image_or_numbers(features: int | Shape) -> Shape:
    """Shape of a sample as layers see it: of two axes it is an image of one channel."""
    shape = (features,) if isinstance(features, int) else features
    return (*shape, 1) if len(shape) == 2 else shape


def _stages(layers: Sequence[Layer], features: Shape, backend: Backend) -> Iterator[_Stage]:
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
        yield _Stage(layer, name, inputs, outputs, before_relu, own, Workspace(backend))
        inputs = outputs
