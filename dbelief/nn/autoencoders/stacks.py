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

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.model import Array, Batch, Drawn, Tensors

from .autoencoder import Eq1, shaped
from .initializers import initial, initial_rows
from .initializers import tensor_shapes as stack_shapes
from .stack import Stack, sizes_of
from .stack_chain import Chain

TENSORS = ("weight", "alpha")


def tensor_name(place: int, own: str) -> str:
    """What `weight` or `alpha` of a stack, from 1, is called in a model of several."""
    return f"stack{place}.{own}"


def tensor_shapes(image: tuple[int, int, int], stacks: Sequence[tuple[Eq1, Lcn]]) -> list[dict[str, tuple[int, ...]]]:
    """Names and shapes of each stack's tensors, as `sizes_of` reads stacks."""
    return [
        {tensor_name(place, own): shape for own, shape in stack_shapes(sizes.blocks).items()}
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

    Attributes
    ----------
    stacks, sizes
        Up to the highest that is trained.
    first
        The lowest that is trained, from 1.
    image, train, given, backend
        As above.

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
        self.stacks, self.sizes = list(stacks)[:last], sizes_of(image, stacks)[:last]
        self.first = 1 if train is None else train
        self.image, self.train, self.given, self.backend = image, train, given, backend

    @cached_property
    def _chain(self) -> Chain:
        """Not before it is used: it takes what is given for stacks below to the device."""
        built = [
            Stack(sizes, eq1, lcn, self.backend) for sizes, (eq1, lcn) in zip(self.sizes, self.stacks, strict=True)
        ]
        below = [own_tensors(self.given, place) for place in range(1, self.first)]
        to_device = self.backend.to_device
        return Chain(built, [{name: to_device(values) for name, values in own.items()} for own in below])

    def without_below(self) -> Stacks:
        """The same without what was given of stacks that are not trained, for who has their tensors elsewhere."""
        places = range(self.first, len(self.stacks) + 1)
        names = [tensor_name(place, own) for place in places for own in TENSORS]
        kept = {name: self.given[name] for name in names if name in self.given}
        return Stacks(self.image, self.stacks, self.train, kept, self.backend)

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Give what was given of the trained stacks; the rest is drawn as `SparseAutoencoder` does."""
        values = {}
        for place, sizes in enumerate(self.sizes[self.first - 1 :], start=self.first):
            for own, drawn in initial(sizes.blocks, rng).items():
                name = tensor_name(place, own)
                values[name] = self.given.get(name, drawn)
        return values

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the tensors of trained stacks by name, in their order; nothing is drawn."""
        return {
            tensor_name(place, own): shape
            for place, sizes in enumerate(self.sizes[self.first - 1 :], start=self.first)
            for own, shape in stack_shapes(sizes.blocks).items()
        }

    def drawn(self, rng: np.random.Generator) -> Drawn:
        """Draw the same, a row of blocks at a time; what was given comes whole."""
        for place, sizes in enumerate(self.sizes[self.first - 1 :], start=self.first):
            for own, first, rows in initial_rows(sizes.blocks, rng):  # drawn in any case: what follows is the same then
                name = tensor_name(place, own)
                if name not in self.given:
                    yield name, first, rows
                elif first == 0:
                    yield name, 0, self.given[name]

    def loss_and_gradient(self, views: Tensors, batch: Batch, out: Tensors) -> float:
        """Give the mean of the objectives that are trained, and write its gradient into `out`.

        Raises
        ------
        ModelError
            The batch holds other images than the lowest stack sees.
        """
        own = self.trained_tensors(views)
        loss = self._chain.forward(own, self.checked_inputs(own[0]["weight"].dtype, batch.inputs))
        self._chain.backward(own, len(batch), self.trained_tensors(out))
        return loss / len(batch)

    def evaluate(self, views: Tensors, batch: Batch) -> tuple[float, None]:
        """Give the sum of the objectives that are trained, over the batch; no answer is right or wrong."""
        own = self.trained_tensors(views)
        return self._chain.evaluate(own, self.checked_inputs(own[0]["weight"].dtype, batch.inputs)), None

    def seen(self, inputs: Array) -> Array:
        """What the lowest stack that is trained sees of inputs, (m, height, width, maps): a buffer until called again.

        Raises
        ------
        ModelError
            The inputs are other images than the lowest stack sees.
        """
        return self._chain.seen(self.checked_inputs(inputs.dtype, inputs))

    def checked_inputs(self, kind: np.dtype, inputs: Array) -> Array:
        """Give the inputs as images, once they are known to be of the lowest stack's size and of this type."""
        return shaped("stacks", self.image, kind, inputs)

    def trained_tensors(self, views: Tensors) -> list[dict[str, Array]]:
        """Of each trained stack, what there is under the names that its layer knows."""
        return [own_tensors(views, place) for place in range(self.first, len(self.stacks) + 1)]


def own_tensors(views: Tensors, place: int) -> dict[str, Array]:
    """Tensors of one stack, from 1, under the names that its layer knows; those that are there."""
    named = {own: tensor_name(place, own) for own in TENSORS}
    return {own: views[name] for own, name in named.items() if name in views}
