"""Stacks of sparse autoencoders, one on the other (Coates et al. 2013, section 3), as a model that is trained.

Each stack l has its own objective J_l (Eq. 1) on what it sees: the images, or the output of the stack below it.

* Greedy (`train` is a stack's number): J_l alone, on the output of the stacks below, whose filters stay as they are.
* Joint (`train` is None): the sum of all J_l, and its gradient in every W and alpha. What the stacks above have for a
  gradient in z is added to J_l's own before it goes into W, and down through J_l's reconstruction as well:

      delta = dJ_l/dz + (what comes from above)
      dJ/dx = alpha W^T delta - 2 e

Only what is trained is a parameter: `stack2.weight` and `stack2.alpha` of stack 2. A greedy step costs ten operations
for each trained weight and sample, and two for each one below; a joint step two more for each above the lowest stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dbelief.backend import Backend
from dbelief.errors import ModelError

from .autoencoder import EVALUATED, Eq1
from .contrast import Lcn
from .model import Array, Batch
from .stack import Stack, sizes_of

TENSORS = ("weight", "alpha")


def tensor_name(place: int, own: str) -> str:
    """What `weight` or `alpha` of a stack, from 1, is called in a model of several."""
    return f"stack{place}.{own}"


def tensor_shapes(image: tuple[int, int, int], stacks: Sequence[tuple[Eq1, Lcn]]) -> list[dict[str, tuple[int, ...]]]:
    """Names and shapes of each stack's tensors, as `sizes_of` reads stacks."""
    return [
        {tensor_name(place, "weight"): sizes.blocks.w_shape, tensor_name(place, "alpha"): (1,)}
        for place, sizes in enumerate(sizes_of(image, stacks), start=1)
    ]


class Stacks:
    """Stacks as a model (`Model` and `Evaluates`); targets are not looked at.

    Loss and gradient are means over the samples of a batch. It keeps buffers: one thread at a time.

    Parameters
    ----------
    image : (height, width, channels)
        Of a sample, as the lowest stack sees it.
    stacks : sequence of (Eq1, Lcn)
        The lowest first.
    train
        The stack that is trained, from 1; None: all.
    given : mapping of name to array
        Tensors that are there already. Of stacks below the one that is trained all must be; of those that are trained,
        what is there stands in place of a drawn initial value.
    backend : Backend
        Where views, batches and gradients live.

    Raises
    ------
    ModelError
        A stack does not fit on what it sees.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        stacks: Sequence[tuple[Eq1, Lcn]],
        train: int | None,
        given: Mapping[str, np.ndarray],
        backend: Backend,
    ) -> None:
        last = len(stacks) if train is None else train
        if not 1 <= last <= len(stacks):
            raise ValueError(f"train is {train}, must be from 1 to {len(stacks)}")
        all_sizes = sizes_of(image, stacks)[:last]
        built = [Stack(sizes, eq1, lcn, backend) for sizes, (eq1, lcn) in zip(all_sizes, stacks, strict=False)]
        self._first = 1 if train is None else train
        self._frozen, self._trained = built[: self._first - 1], built[self._first - 1 :]
        self._given, self.image = given, image
        self._below = [
            {own: backend.to_device(given[tensor_name(place, own)]) for own in TENSORS}
            for place in range(1, self._first)
        ]

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Give what was given of the trained stacks; the rest is drawn as `SparseAutoencoder` does."""
        values = {}
        for place, stack in enumerate(self._trained, start=self._first):
            for own, drawn in stack.layer.parameters(rng).items():
                name = tensor_name(place, own)
                values[name] = self._given.get(name, drawn)
        return values

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
        """Give the mean of the objectives that are trained, and write its gradient into `out`.

        Raises
        ------
        ModelError
            The batch holds other images than the lowest stack sees.
        """
        m, own = len(batch), [self._own(views, i) for i in range(len(self._trained))]
        loss = self._forward(own, batch.inputs)
        dy: Array | None = None
        for i in reversed(range(len(self._trained))):
            dy = self._trained[i].backward(own[i], m, self._own(out, i), dy, down=i > 0)
        return loss / m

    def evaluate(self, views: Mapping[str, Array], batch: Batch) -> tuple[float, None]:
        """Give the sum of the objectives that are trained, over the batch; no answer is right or wrong."""
        own = [self._own(views, i) for i in range(len(self._trained))]
        firsts = range(0, len(batch), EVALUATED)
        return math.fsum(self._forward(own, batch.inputs[first : first + EVALUATED]) for first in firsts), None

    def seen(self, inputs: Array) -> Array:
        """What the lowest stack that is trained sees of inputs, (m, height, width, maps): a buffer until called again.

        Raises
        ------
        ModelError
            The inputs are other images than the lowest stack sees.
        """
        if math.prod(inputs.shape[1:]) != math.prod(self.image):
            size, wanted = math.prod(inputs.shape[1:]), math.prod(self.image)
            raise ModelError(f"stacks: got {size} numbers per sample, expected {wanted} of images {self.image}")
        x = inputs.reshape(len(inputs), *self.image)
        with np.errstate(all="ignore"):  # what is not finite is for the caller to name
            for stack, own in zip(self._frozen, self._below, strict=True):
                x = stack.encode(own, x)
        return x

    def _forward(self, own: Sequence[Mapping[str, Array]], inputs: Array) -> float:
        """Give the sum of the objectives; leave what `backward` needs."""
        x, loss = self.seen(inputs), 0.0
        for i, stack in enumerate(self._trained):
            loss += stack.layer.forward(own[i], x)
            if i + 1 < len(self._trained):
                x = stack.output(own[i], len(x))
        return loss

    def _own(self, views: Mapping[str, Array], i: int) -> dict[str, Array]:
        """Tensors of one trained stack under the names that its layer knows."""
        return {own: views[tensor_name(self._first + i, own)] for own in TENSORS}
