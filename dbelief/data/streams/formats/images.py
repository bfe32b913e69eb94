"""Image files in a folder for each class, decoded by Pillow when they are used."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.data.files.data_file import DataFile, file_at, objects_digest
from dbelief.data.files.locations import files_below, folders_in, is_folder
from dbelief.data.formats.idx import PIXEL_SCALE
from dbelief.data.splits import cut
from dbelief.data.streams.ranges import Ranges, unit_size
from dbelief.data.streams.stream_sets import StreamSets
from dbelief.data.streams.unit_source import UnitArrays
from dbelief.errors import DataError
from dbelief.job import ImagesData, place
from dbelief.url import Url

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pbm", ".pgm", ".pnm", ".ppm"}
)
_NOT_READ = frozenset(
    {".avif", ".heic", ".heif", ".jxl", ".jp2", ".tga", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw"}
)
"""Images that are not read: one among others would be left out without a word."""
UNIT = 256
"""Most images of a unit, where the job says nothing."""
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"})
"""Of Pillow, with 8 bits a channel at most: others would be cut off at 255."""


class Images:
    """Image files with their labels, as `Indexed`.

    Attributes
    ----------
    labels : int64, shape (n,)
    objects : str
        As in `Dataset`.
    """

    dtype = np.dtype(np.uint8)
    width: int | None = None

    def __init__(self, files: list[DataFile], labels: np.ndarray, spec: ImagesData, where: str) -> None:
        if find_spec("PIL") is None:
            raise DataError(f"{where}: images need Pillow: pip install 'dbelief[images]'")
        self._files, self.labels, self.where = files, labels, where
        self.objects = objects_digest(files)
        self._size, self._channels = (spec.width, spec.height), spec.channels
        self.features: tuple[int, ...] = (spec.height * spec.width * spec.channels,)

    def read(self, indices: np.ndarray) -> UnitArrays:
        """See `Indexed`: rows of an image, from above; of each pixel its channels."""
        inputs = np.empty((len(indices), *self.features), np.uint8)
        for row, index in enumerate(indices.tolist()):
            inputs[row] = self._pixels(self._files[index])
        return UnitArrays(inputs, self.labels[indices])

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """See `Indexed`."""
        labels: np.ndarray = self.labels[indices]
        return labels

    def _pixels(self, file: DataFile) -> np.ndarray:
        from PIL import Image

        try:
            with file.open_whole() as opened, Image.open(opened) as image:
                if image.mode not in _MODES:
                    raise DataError(f"{file}: has pixels of mode {image.mode}: convert them to 8 bits a channel")
                image.load()
                found = _upright(image).convert("L" if self._channels == 1 else "RGB")
                if found.size != self._size:
                    found = found.resize(self._size, Image.Resampling.BILINEAR)
                return np.asarray(found).reshape(-1)
        except Image.DecompressionBombError:
            most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
            raise DataError(f"{file}: has more than {most:,} pixels: make it smaller") from None
        except (
            OSError,
            SyntaxError,
            ValueError,
            EOFError,
            struct.error,
        ):  # the first: of Pillow, for an unknown format
            raise DataError(f"{file}: no image, or a damaged one") from None


def _upright(image: Any) -> Any:
    """The image as its camera was held; what is transparent in a palette is left out as elsewhere."""
    from PIL import ImageOps

    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    try:
        return ImageOps.exif_transpose(image)
    except (OSError, SyntaxError, ValueError, EOFError, struct.error):  # damaged EXIF says nothing about the pixels
        return image


def open_images(spec: ImagesData, folder: Path) -> StreamSets:
    """List the images; they are decoded when they are used.

    Raises
    ------
    DataError
    """
    train = _listed(place(spec.folder, folder), spec, None)
    classes, images = train
    own = {"validation": spec.validation_folder, "test": spec.test_folder}
    validation, test = (0 if own[name] else getattr(spec, name) for name in own)
    parts = cut(len(images.labels), images.labels, validation, test, images.where)
    unit = unit_size(spec.unit, UNIT, len(images.labels))
    made = {name: Ranges(images, _mixed(part), unit) if len(part) else None for name, part in vars(parts).items()}
    for name, text in own.items():
        if text is not None:
            _, others = _listed(place(text, folder), spec, classes)
            made[name] = Ranges(others, np.arange(len(others.labels)), unit)
    return StreamSets(made, classes, PIXEL_SCALE, objects=images.objects)


def read_image_files(where: Path | Url, spec: ImagesData) -> np.ndarray:
    """Read an image, or all images below a folder in the order of their paths: uint8, (n, height width channels).

    Raises
    ------
    DataError
    """
    if not is_folder(where):
        files = [file_at(where)]
    else:
        files = [file for file in files_below(where).values() if _is_image(file)]
    if not files:
        raise DataError(f"{where}: has no images ({', '.join(sorted(SUFFIXES))})")
    images = Images(files, np.zeros(len(files), np.int64), spec, str(where))
    pixels: np.ndarray = images.read(np.arange(len(files))).inputs
    return pixels


def _is_image(file: DataFile) -> bool:
    if file.suffix in _NOT_READ:
        raise DataError(f"{file}: images of this kind are not read: convert it, or take it out of the folder")
    return file.suffix in SUFFIXES


def _mixed(samples: np.ndarray) -> np.ndarray:
    """Samples in a fixed random order: those of one class follow each other, and a unit should have all classes."""
    return np.random.Generator(np.random.PCG64([0, len(samples)])).permutation(samples)


def _listed(where: Path | Url, spec: ImagesData, known: tuple[str, ...] | None) -> tuple[tuple[str, ...], Images]:
    """Names of the classes, and the images; `known`: classes of the training."""
    found = files_below(where)
    names = sorted({parts[0] for parts in found if len(parts) > 1} | set(folders_in(where)))
    if known is not None and (unknown := [name for name in names if name not in known]):
        raise DataError(f"{where / unknown[0]}: class {unknown[0]!r} is not in the training folder")
    if known is None and len(names) < 2:
        raise DataError(f"{where}: has {len(names)} folders, and a class has one each: at least 2 are wanted")
    classes = known or tuple(names)
    of_class: dict[str, list[DataFile]] = {name: [] for name in names}
    for parts, file in found.items():
        if len(parts) > 1 and _is_image(file):
            of_class[parts[0]].append(file)
    if empty := [name for name, files in of_class.items() if not files]:
        raise DataError(f"{where / empty[0]}: has no images ({', '.join(sorted(SUFFIXES))})")
    labels = np.repeat([classes.index(name) for name in names], [len(of_class[name]) for name in names])
    return classes, Images(
        [file for name in names for file in of_class[name]], labels.astype(np.int64), spec, str(where)
    )
