"""Photographs as arrays: of a folder, or those included in scikit-image and scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from dbelief.data.files.errors import cause
from dbelief.data.files.locations import files_below
from dbelief.errors import DataError

BUILTIN = "photographs"
"""Source name for the packages' photographs, instead of a folder."""

SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"}

# Scenes, faces, animals and surfaces; not the packages' drawings, scans and micrographs.
_IN_PACKAGES = {
    "skimage.data": (
        *("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png"),
        *("grass.png", "gravel.png", "motorcycle_left.png", "rocket.jpg"),
    ),
    "sklearn.datasets.images": ("china.jpg", "flower.jpg"),
}


def photographs(source: str, height: int, channels: int) -> Iterator[np.ndarray]:
    """Yield photographs in the order of their names.

    Parameters
    ----------
    source
        A folder, or "photographs".
    height
        Of the shorter side, pixels: all photographs are scaled to it.
    channels
        1 for grey, 3 for red, green, blue.

    Yields
    ------
    float64, shape (height, width, channels), from 0 to 1

    Raises
    ------
    DataError
        Pillow or the packages are not installed, there are no images, or one cannot be read.
    """
    for path in _builtin() if source == BUILTIN else _below(Path(source)):
        yield _read(path, height, channels)


def _builtin() -> Iterator[Path]:
    for package, names in _IN_PACKAGES.items():
        try:
            folder = files(package)
        except ModuleNotFoundError:
            missing = package.partition(".")[0]
            raise DataError(
                f"{BUILTIN}: {missing} is not there; pip install 'dbelief[photographs]', or name a folder"
            ) from None
        for name in names:
            with as_file(folder / name) as path:
                yield path


def _below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder (or {BUILTIN}, for those of scikit-image and scikit-learn)")
    found = [file.path for file in files_below(folder).values() if file.path is not None and file.suffix in SUFFIXES]
    if not found:
        raise DataError(f"{folder}: holds no images ({', '.join(sorted(SUFFIXES))})")
    return found


def _read(path: Path, height: int, channels: int) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError(f"{path}: reading images needs Pillow: pip install 'dbelief[photographs]'") from None
    try:
        with Image.open(path) as image:
            made = image.convert("L" if channels == 1 else "RGB")
            shrink = height / min(made.size)
            wide, high = (max(height, round(side * shrink)) for side in made.size)
            made = made.resize((wide, high), Image.Resampling.LANCZOS)
    except UnidentifiedImageError:
        raise DataError(f"{path}: is no image that can be read") from None
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: {cause(error)}") from None
    pixels = np.asarray(made, np.float64) / 255
    return pixels.reshape(*pixels.shape[:2], channels)
