"""The neurons of the highest stack as functions of the image: what they answer, and what that is sensitive to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.model import Array

from .autoencoder import Eq1
from .stack import Stack, sizes_of
from .stacks import TENSORS, tensor_name


class Neurons:
    """All neurons of the highest of some stacks; its buffers are for one thread at a time.

    Parameters
    ----------
    image : (height, width, channels)
    stacks : sequence of (Eq1, Lcn)
        The lowest first.
    tensors : mapping of name to array, all of one dtype
        Of all stacks, as `tensor_name` calls them.
    backend : Backend

    Attributes
    ----------
    shape : (rows, columns, maps)
        In which the neurons lie.
    count : int
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        stacks: Sequence[tuple[Eq1, Lcn]],
        tensors: Mapping[str, np.ndarray],
        backend: Backend,
    ) -> None:
        sizes = sizes_of(image, stacks)
        self._stacks = [Stack(size, eq1, lcn, backend) for size, (eq1, lcn) in zip(sizes, stacks, strict=True)]
        self._views = [
            {own: backend.to_device(tensors[tensor_name(place, own)]) for own in TENSORS}
            for place in range(1, len(stacks) + 1)
        ]
        self._backend, self.image = backend, image
        self.dtype: np.dtype = tensors[tensor_name(1, "weight")].dtype
        self.shape = sizes[-1].maps
        self.count = math.prod(self.shape)

    def responses(self, images: np.ndarray) -> np.ndarray:
        """Responses (m, count) to images (m, height, width, channels)."""
        return self._backend.to_host(self._up(images)).reshape(len(images), -1).copy()

    def gradients(self, images: np.ndarray, neurons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of one neuron for each image: its responses (m,), and their gradients (m, height, width, channels)."""
        found = self._up(images)
        flat = found.reshape(len(images), -1)
        rows = self._backend.to_device(np.arange(len(images)))
        chosen = self._backend.to_device(neurons)
        values = self._backend.to_host(flat[rows, chosen])
        d = self._backend.xp.zeros_like(found)
        d.reshape(flat.shape)[rows, chosen] = 1
        top = len(self._stacks) - 1
        for place in range(top, -1, -1):
            stack = self._stacks[place]
            if place < top:
                d = stack.through_pooling(stack.through_contrast(d))
            d = stack.through_filters(self._views[place], d)
        return values, self._backend.to_host(d).copy()

    def _up(self, images: np.ndarray) -> Array:
        x = self._backend.to_device(np.ascontiguousarray(images, self.dtype))
        for stack, views in zip(self._stacks[:-1], self._views, strict=False):
            x = stack.encode(views, x)
        return self._stacks[-1].filters(self._views[-1], x)
