"""The UCI optical digits that are included in dbelief; DIGITS.md names their origin."""

from collections.abc import Collection
from importlib.resources import files

from .dataset import Dataset
from .formats.npz import dataset, read_arrays
from .splits import cut

PIXEL_SCALE = 1 / 16
"""A pixel is the number of black dots in a 4 x 4 block: 0 to 16."""

VALIDATION = 180
TEST = 360


def load_digits(need: Collection[str]) -> Dataset:
    """Load 1,797 images of 8 x 8 pixels, split by classes and seed 0 into 1,257 / 180 / 360."""
    where = "digits"
    with (files("dbelief.data") / "digits.npz").open("rb") as file:
        arrays = read_arrays(file, where)
    images, labels = arrays["images"], arrays["labels"].astype("int64")
    parts = cut(len(images), labels, VALIDATION, TEST, where, seed=0)
    sets = {name: (images[rows], labels[rows]) for name, rows in vars(parts).items()}
    return dataset(sets, where, need, PIXEL_SCALE)
