"""Image files in a folder for each class, decoded by Pillow when they are used."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dbelief.data.files import cause
from dbelief.data.formats.idx import PIXEL_SCALE
from dbelief.data.splits import cut
from dbelief.data.streams.ranges import Ranges, unit_size
from dbelief.data.streams.stream_sets import StreamSets
from dbelief.data.streams.unit_source import UnitArrays
from dbelief.errors import DataError
from dbelief.job import ImagesData, resolve

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
UNIT = 256
"""Most images of a unit, where the job says nothing."""
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"})
"""Of Pillow, with 8 bits a channel at most: others would be cut off at 255."""


class Images:
    """Image files with their labels, as `Indexed`.

    Attributes
    ----------
    labels : int64, shape (n,)
    """

    dtype = np.dtype(np.uint8)
    width: int | None = None

    def __init__(self, paths: list[Path], labels: np.ndarray, spec: ImagesData, where: str) -> None:
        if find_spec("PIL") is None:
            raise DataError(f"{where}: images need Pillow: pip install 'dbelief[images]'")
        self._paths, self.labels, self.where = paths, labels, where
        self._size, self._channels = (spec.width, spec.height), spec.channels
        self.features: tuple[int, ...] = (spec.height * spec.width * spec.channels,)

    def read(self, indices: np.ndarray) -> UnitArrays:
        """See `Indexed`: rows of an image, from above; of each pixel its channels."""
        inputs = np.empty((len(indices), *self.features), np.uint8)
        for row, index in enumerate(indices.tolist()):
            inputs[row] = self._pixels(self._paths[index])
        return UnitArrays(inputs, self.labels[indices])

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """See `Indexed`."""
        labels: np.ndarray = self.labels[indices]
        return labels

    def _pixels(self, path: Path) -> np.ndarray:
        from PIL import Image, ImageOps, UnidentifiedImageError

        try:
            with Image.open(path) as image:
                if image.mode not in _MODES:
                    raise DataError(f"{path}: has pixels of mode {image.mode}: convert them to 8 bits a channel")
                found = ImageOps.exif_transpose(image).convert("L" if self._channels == 1 else "RGB")
                if found.size != self._size:
                    found = found.resize(self._size, Image.Resampling.BILINEAR)
                return np.asarray(found).reshape(-1)
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
            what = "no image, or a damaged one" if not isinstance(error, FileNotFoundError) else cause(error)
            raise DataError(f"{path}: {what}") from None


def open_images(spec: ImagesData, folder: Path) -> StreamSets:
    """List the images; they are decoded when they are used.

    Raises
    ------
    DataError
    """
    train = _listed(resolve(spec.folder, folder), spec, None)
    classes, images = train
    own = {"validation": spec.validation_folder, "test": spec.test_folder}
    validation, test = (0 if own[name] else getattr(spec, name) for name in own)
    parts = cut(len(images.labels), images.labels, validation, test, images.where)
    unit = unit_size(spec.unit, UNIT, len(images.labels))
    made = {name: Ranges(images, _mixed(part), unit) if len(part) else None for name, part in vars(parts).items()}
    for name, text in own.items():
        if text is not None:
            _, others = _listed(resolve(text, folder), spec, classes)
            made[name] = Ranges(others, np.arange(len(others.labels)), unit)
    assert made["train"] is not None, "`cut` leaves some"
    return StreamSets(made["train"], made["validation"], made["test"], classes, PIXEL_SCALE)


def read_image_files(path: Path, spec: ImagesData) -> np.ndarray:
    """Read an image, or all images below a folder in the order of their paths: uint8, (n, height width channels).

    Raises
    ------
    DataError
    """
    paths = _images_below(path) if path.is_dir() else [path]
    if not paths:
        raise DataError(f"{path}: has no images ({', '.join(sorted(SUFFIXES))})")
    images = Images(paths, np.zeros(len(paths), np.int64), spec, str(path))
    return images.read(np.arange(len(paths))).inputs


def _images_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def _mixed(samples: np.ndarray) -> np.ndarray:
    """Samples in a fixed random order: those of one class follow each other, and a unit should have all classes."""
    return np.random.Generator(np.random.PCG64([0, len(samples)])).permutation(samples)


def _listed(folder: Path, spec: ImagesData, known: tuple[str, ...] | None) -> tuple[tuple[str, ...], Images]:
    """Names of the classes, and the images; `known`: classes of the training."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if known is not None and (unknown := [name for name in names if name not in known]):
        raise DataError(f"{folder / unknown[0]}: class {unknown[0]!r} is not in the training folder")
    if known is None and len(names) < 2:
        raise DataError(f"{folder}: has {len(names)} folders, and a class has one each: at least 2 are wanted")
    classes = known or tuple(names)
    paths, labels = list[Path](), list[int]()
    for name in names:
        own = _images_below(folder / name)
        if not own:
            raise DataError(f"{folder / name}: has no images ({', '.join(sorted(SUFFIXES))})")
        paths += own
        labels += [classes.index(name)] * len(own)
    return classes, Images(paths, np.array(labels, np.int64), spec, str(folder))
