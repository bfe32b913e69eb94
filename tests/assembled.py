"""Complete tensors of a flat vector, for tests that compare them."""

import numpy as np

from dbelief.core.layout import Layout


def assembled(layout: Layout, flat: np.ndarray) -> dict[str, np.ndarray]:
    """By name, copied; the inverse of `Layout.flatten`."""
    tensors: dict[str, np.ndarray] = {}
    for box, start in zip(layout.boxes, layout.starts, strict=True):
        tensor = tensors.setdefault(box.name, np.empty(box.shape, flat.dtype))
        tensor[box.index] = flat[start : start + box.size].reshape(box.box_shape)
    return tensors
