"""IDX files of MNIST: big-endian header (magic, count, and rows and columns of images), then bytes."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from dbelief.data.dataset import Dataset, Split
from dbelief.data.files.contents import read
from dbelief.data.files.data_file import DataFile, objects_digest
from dbelief.data.files.locations import find_member
from dbelief.data.validation import classes
from dbelief.errors import DataError
from dbelief.job import IdxData, place
from dbelief.url import Url

IMAGES_MAGIC = 0x00000803
LABELS_MAGIC = 0x00000801
PIXEL_SCALE = 1 / 255


def load_idx(spec: IdxData, folder: Path, need: Collection[str]) -> Dataset:
    """Load the four files, or those that contain the needed sets; validation is the end of the training file.

    Raises
    ------
    DataError
    """
    where = place(spec.folder, folder)
    source = [find_member(where, "train-labels-idx1-ubyte")]
    labels = read_labels(source[0])
    first = len(labels) - spec.validation
    if first < 1:
        raise DataError(f"{where}: {spec.validation} of {len(labels)} training images for validation leave none")
    sets: dict[str, Split] = {}
    held: dict[str, np.ndarray] = {"validation": labels[first:]}
    if {"train", "validation"} & set(need):
        source.append(find_member(where, "train-images-idx3-ubyte"))
        images = _labelled_images(source[1], len(labels))
        sets["train"] = Split(images[:first], labels[:first], PIXEL_SCALE)
        sets["validation"] = Split(images[first:], labels[first:], PIXEL_SCALE)
    if "test" in need:
        held["test"] = read_labels(find_member(where, "t10k-labels-idx1-ubyte"))
        images = _labelled_images(find_member(where, "t10k-images-idx3-ubyte"), len(held["test"]))
        sets["test"] = Split(images, held["test"], PIXEL_SCALE)
    k = classes(labels[:first], held, str(where))
    widths = [split.inputs.shape[1] for split in sets.values()]
    if len(set(widths)) > 1:
        raise DataError(f"{where}: training images have {widths[0]} pixels, test images {widths[-1]}")
    kept = {name: split for name, split in sets.items() if name in need and len(split)}
    made = Dataset(kept.get("train"), kept.get("validation"), kept.get("test"), k, (widths[0],))
    return replace(made, objects=objects_digest(source))


def idx_sizes(spec: IdxData, folder: Path) -> tuple[int, int, int]:
    """Samples of the three sets, from the files' headers.

    Raises
    ------
    DataError
    """
    where = place(spec.folder, folder)
    labels, test = (_count(where, f"{name}-labels-idx1-ubyte", LABELS_MAGIC, "labels") for name in ("train", "t10k"))
    for name, count in (("train", labels), ("t10k", test)):
        images = f"{name}-images-idx3-ubyte"
        if (found := _count(where, images, IMAGES_MAGIC, "images", 3)) != count:
            raise DataError(f"{find_member(where, images)}: has {found} images, but there are {count} labels")
    if spec.validation >= labels:
        raise DataError(f"{where}: {spec.validation} of {labels} training images for validation leave none")
    return labels - spec.validation, spec.validation, test


def _count(where: Path | Url, name: str, magic: int, what: str, axes: int = 1) -> int:
    path = find_member(where, name)
    return _header(path, read(path, 4 + 4 * axes), magic, what, axes)[0]


def _labelled_images(path: DataFile, count: int) -> np.ndarray:
    """Read images whose number is that of the labels."""
    images = read_images(path)
    if len(images) != count:
        raise DataError(f"{path}: has {len(images)} images, but there are {count} labels")
    return images


def read_images(path: DataFile) -> np.ndarray:
    """Read images as uint8 of shape (n, rows * columns).

    Raises
    ------
    DataError
        The file is truncated, or not of images.
    """
    content = read(path)
    found, rows, columns = _header(path, content, IMAGES_MAGIC, "images", 3)
    if not rows * columns:
        raise DataError(f"{path}: images of {rows} x {columns} pixels are empty")
    return _body(path, content, 16, found * rows * columns).reshape(found, rows * columns)


def read_labels(path: DataFile) -> np.ndarray:
    """Read labels as int64 of shape (n,).

    Raises
    ------
    DataError
        The file is truncated, not of labels, or empty.
    """
    content = read(path)
    (count,) = _header(path, content, LABELS_MAGIC, "labels", 1)
    if not count:
        raise DataError(f"{path}: has no labels")
    return _body(path, content, 8, count).astype(np.int64)


def _header(path: DataFile, content: bytes, magic: int, what: str, axes: int) -> list[int]:
    size = 4 + 4 * axes
    if len(content) < size:
        raise DataError(f"{path}: ends within its header, after {len(content)} of {size} bytes")
    lengths: list[int]
    found, *lengths = np.frombuffer(content, ">u4", 1 + axes).tolist()
    if found != magic:
        raise DataError(f"{path}: not an IDX file of {what}: its magic number is {found:#010x}, not {magic:#010x}")
    return lengths


def _body(path: DataFile, content: bytes, offset: int, size: int) -> np.ndarray:
    if len(content) != offset + size:
        raise DataError(f"{path}: holds {len(content) - offset} bytes of data, but its header says {size}")
    return np.frombuffer(content, np.uint8, size, offset)
