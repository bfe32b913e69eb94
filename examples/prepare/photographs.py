"""Makes the data of `examples/autoencoder.yaml` and `stacks.yaml`: images cut from whitened photographs.

    pip install pillow scikit-image scikit-learn
    python examples/prepare/photographs.py examples/whitened.npz --images 60000

With `--folder` the photographs are the images below a folder; otherwise twelve of scikit-image and scikit-learn.

The amplitude of photographs falls as 1 / |f| with the spatial frequency f (cycles a pixel), which is what a layer would
learn first. Each photograph is filtered by |f| exp(-(|f| / f0)^4) (Olshausen and Field, Nature 1996, with f0 = 0.4 to
remove the grid's noise; here 0.7, which is nearly the grid's own corner, so that no direction among images is empty:
neurons that reduce their activity would converge there). Channels are then decorrelated without rotation (ZCA). Images
are cut at random positions, the same number from each photograph; the mean of each is subtracted and it is divided by
sqrt(variance + 0.1), a photograph's variance being 1.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

import numpy as np

F0 = 0.7
CONTRAST = 0.1
BORDER = 8  # pixels: the filter treats a photograph as a torus, whose opposite sides are adjacent
SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"}
IN_PACKAGES = {
    "skimage.data": (
        *("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png"),
        *("grass.png", "gravel.png", "motorcycle_left.png", "rocket.jpg"),
    ),
    "sklearn.datasets.images": ("china.jpg", "flower.jpg"),
}
"""Scenes, faces, animals and surfaces; not the packages' drawings, scans and micrographs."""


def photographs(folder: Path | None) -> list[Path]:
    """Paths of the images below a folder, or of those in the packages."""
    if folder is None:
        return [Path(str(files(package) / name)) for package, names in IN_PACKAGES.items() for name in names]
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def read(path: Path, height: int, colour: bool) -> np.ndarray:
    """A photograph whose shorter side has `height` pixels: float64 from 0 to 1, shape (height, width, channels)."""
    from PIL import Image

    with Image.open(path) as image:
        made = image.convert("RGB" if colour else "L")
        shrink = height / min(made.size)
        wide, high = (max(height, round(side * shrink)) for side in made.size)
        pixels = np.asarray(made.resize((wide, high), Image.Resampling.LANCZOS), np.float64) / 255
    return pixels.reshape(high, wide, -1)


def whitened(photograph: np.ndarray) -> np.ndarray:
    """Filter a photograph; afterwards each channel has mean 0 and variance 1, or is 0 if it was constant."""
    height, width, _ = photograph.shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    gain = frequency * np.exp(-((frequency / F0) ** 4))
    spectrum = np.fft.rfft2(photograph, axes=(0, 1)) * gain[..., None]
    filtered = np.fft.irfft2(spectrum, (height, width), axes=(0, 1))
    spread = filtered.std(axis=(0, 1))
    return filtered / np.where(spread > 1e-9, spread, 1)


def uncorrelated(whole: list[np.ndarray]) -> list[np.ndarray]:
    """Multiply by C^(-1/2), C the channels' covariance over all photographs."""
    pixels = sum(photograph[..., 0].size for photograph in whole)
    covariance = sum(np.einsum("yxc,yxd->cd", photograph, photograph) for photograph in whole) / pixels
    values, vectors = np.linalg.eigh(covariance)
    turn = vectors / np.sqrt(np.maximum(values, 1e-6)) @ vectors.T
    return [photograph @ turn for photograph in whole]


def cut_images(whole: list[np.ndarray], images: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Images at random positions, from the photographs in rotation: float32, shape (images, size, size, channels)."""
    border = min(BORDER, (min(min(photograph.shape[:2]) for photograph in whole) - size) // 2)
    made = np.empty((images, size, size, whole[0].shape[-1]), np.float32)
    for place in range(images):
        photograph = whole[place % len(whole)]
        y, x = (int(rng.integers(border, side - size - border + 1)) for side in photograph.shape[:2])
        image = photograph[y : y + size, x : x + size]
        image = image - image.mean()
        made[place] = image / np.sqrt(image.var() + CONTRAST)
    return made


def main() -> None:
    """Write `inputs`, and as `targets` the photographs' numbers, which unsupervised learning does not use."""
    parser = argparse.ArgumentParser(description="Cut training images from whitened photographs.")
    parser.add_argument("output", type=Path, help="The .npz file.")
    parser.add_argument("--folder", type=Path, help="Of photographs; default: those of scikit-image and scikit-learn.")
    parser.add_argument("--images", type=int, default=20_000, help="Number of images that are cut.")
    parser.add_argument("--size", type=int, default=20, help="Side of an image, pixels; smaller than the height.")
    parser.add_argument("--height", type=int, default=256, help="Photographs' shorter side, pixels.")
    parser.add_argument("--colour", action="store_true", help="Three channels; else grey.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the places that are cut.")
    given = parser.parse_args()
    paths = photographs(given.folder)
    if not paths or given.size >= given.height:
        parser.error("the folder must hold images, and the size must be less than the height")
    whole = uncorrelated([whitened(read(path, given.height, given.colour)) for path in paths])
    cut = cut_images(whole, given.images, given.size, np.random.default_rng(given.seed))
    number = (np.arange(given.images) % len(whole)).astype(np.float32)[:, None]
    np.savez(given.output, inputs=cut, targets=number)
    print(f"{given.output}: {given.images:,} images out of {len(whole)} photographs")


if __name__ == "__main__":
    main()
