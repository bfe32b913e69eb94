"""Labelled images of faces and non-faces, of a small network's input size: the LFW subset included in scikit-image.

100 faces of Labeled Faces in the Wild (Huang et al. 2007) and 100 patches from such photographs' corners, grey, 25 x 25
pixels. Corners are emptier than faces, so a neuron that responds to any contrast in the middle separates many of them.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from dbelief.errors import DataError
from dbelief.process.atomic_file import atomic_write

from .whiten import CONTRAST, whitened

FACES = 100  # the first of the images
_MARGIN = 12  # pixels that are mirrored at each border, so that whitening has no edge there


def write_faces(path: Path, size: int) -> tuple[int, int]:
    """Whiten each image as `whiten.py` does, crop its middle, and write an .npz file; return (images, faces).

    The file holds `inputs` (200, size, size, 1) float32 and `targets` (200,) int64: 1 for a face.

    Raises
    ------
    DataError
        scikit-image is not installed.
    """
    images = _images()
    low = (images.shape[1] - size) // 2 + _MARGIN
    mirrored = np.pad(images, ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN)), mode="symmetric")
    cut = np.stack([whitened(image[..., None])[low : low + size, low : low + size] for image in mirrored])
    cut -= cut.mean(axis=(1, 2, 3), keepdims=True)
    cut /= np.sqrt(cut.var(axis=(1, 2, 3), keepdims=True) + CONTRAST)
    labels = (np.arange(len(images)) < FACES).astype(np.int64)
    with atomic_write(path) as file:
        np.savez(file, inputs=cut.astype(np.float32), targets=labels)
    return len(images), FACES


def _images() -> np.ndarray:
    """(200, 25, 25) float64, from 0 to 1."""
    try:
        folder = files("skimage.data")
    except ModuleNotFoundError:
        raise DataError("faces: skimage is not there; pip install 'dbelief[photographs]'") from None
    with as_file(folder / "lfw_subset.npy") as path:
        images: np.ndarray = np.load(path, allow_pickle=False)
    return images
