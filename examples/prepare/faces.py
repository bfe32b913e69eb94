"""Makes labelled images for `dbelief report RUN --images`: python examples/prepare/faces.py examples/faces.npz

100 faces of Labeled Faces in the Wild (Huang et al. 2007) and 100 patches from such photographs' corners, grey, 24 x 24
pixels: the subset included in scikit-image (`pip install scikit-image`), whitened as `photographs.py` does. Labels are
1 and 0. Corners are emptier than faces, so a neuron that responds to any contrast in the middle separates many of them.
"""

from __future__ import annotations

import sys
from importlib.resources import files

import numpy as np
from photographs import CONTRAST, whitened

FACES = 100  # the first of the images
SIZE = 24
MARGIN = 12  # pixels that are mirrored at each border, so that whitening has no edge there


def main(output: str) -> None:
    """Write `inputs` (200, 24, 24, 1) float32 and `targets` (200,) int64."""
    images = np.load(str(files("skimage.data") / "lfw_subset.npy"), allow_pickle=False)  # (200, 25, 25), from 0 to 1
    mirrored = np.pad(images, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)), mode="symmetric")
    middle = slice(MARGIN, MARGIN + SIZE)
    cut = np.stack([whitened(image[..., None])[middle, middle] for image in mirrored])
    cut -= cut.mean(axis=(1, 2, 3), keepdims=True)
    cut /= np.sqrt(cut.var(axis=(1, 2, 3), keepdims=True) + CONTRAST)
    np.savez(output, inputs=cut.astype(np.float32), targets=(np.arange(len(images)) < FACES).astype(np.int64))
    print(f"{output}: {len(images)} images of {SIZE} x {SIZE} x 1, {FACES} of them faces")


if __name__ == "__main__":
    main(sys.argv[1])
