"""Photographs to whitened images: what is equal afterwards, what is refused, and that npz reads it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from dbelief.cli.main import main
from dbelief.data import load
from dbelief.data.preparation.photographs import photographs
from dbelief.data.preparation.whiten import cut_images, uncorrelated, whitened
from dbelief.errors import DataError
from dbelief.job import NpzData


def scene(seed: int, height: int = 96, width: int = 128) -> np.ndarray:
    """Amplitude 1 / f, as photographs have it, and three channels that go together."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    fall = 1 / np.maximum(frequency, 1 / width)
    spectra = np.fft.rfft2(rng.standard_normal((4, height, width))) * fall
    light, *tints = np.fft.irfft2(spectra)
    return np.stack([light + 0.3 * tint for tint in tints], axis=-1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scenes" / "more").mkdir(parents=True)
    for seed, name in enumerate(("b.png", "a.jpg", "more/c.png")):
        values = scene(seed)
        grey = (values - values.min()) / np.ptp(values)
        Image.fromarray((255 * grey).astype(np.uint8)).save(tmp_path / "scenes" / name)
    (tmp_path / "scenes" / "notes.txt").write_text("no image")
    return tmp_path / "scenes"


def whiten(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["data", "whiten", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_all_frequencies_have_about_equal_power() -> None:
    made = whitened(scene(1))
    power = abs(np.fft.rfft2(made[..., 0])) ** 2
    frequency = np.hypot(np.fft.fftfreq(96)[:, None], np.fft.rfftfreq(128)[None, :])
    bands = [power[(frequency >= low) & (frequency < low + 0.1)].mean() for low in (0.05, 0.15, 0.25, 0.35)]
    assert max(bands) < 1.6 * min(bands)
    np.testing.assert_allclose(made.mean(axis=(0, 1)), 0, atol=1e-12)
    np.testing.assert_allclose(made.std(axis=(0, 1)), 1)
    assert not whitened(np.full((16, 16, 1), 0.7)).any()


def test_channels_are_uncorrelated_and_keep_their_places() -> None:
    before = [whitened(scene(seed)) for seed in (1, 2)]
    after = uncorrelated(before)
    pixels = np.concatenate([one.reshape(-1, 3) for one in after])
    np.testing.assert_allclose(pixels.T @ pixels / len(pixels), np.eye(3), atol=1e-9)
    old = np.concatenate([one.reshape(-1, 3) for one in before])
    assert (np.einsum("nc,nc->c", old, pixels) / len(pixels) > 0.3).all()


def test_images_have_no_mean_and_no_more_contrast_than_one() -> None:
    made = cut_images([whitened(scene(1))], 50, 12, np.random.default_rng(0))
    assert made.shape == (50, 12, 12, 3)
    np.testing.assert_allclose(made.mean(axis=(1, 2, 3)), 0, atol=1e-6)
    assert (made.std(axis=(1, 2, 3)) < 1).all()
    assert made.std() > 0.8
    with pytest.raises(DataError, match="images of 97 x 97 pixels do not fit into photographs of 96 pixels"):
        cut_images([scene(1)], 1, 97, np.random.default_rng(0))


def test_photographs_are_scaled_and_come_by_name(folder: Path) -> None:
    grey = list(photographs(str(folder), 48, 1))
    assert [one.shape for one in grey] == [(48, 64, 1)] * 3
    colour = list(photographs(str(folder), 100, 3))
    assert [one.shape[::2] for one in colour] == [(100, 3)] * 3
    assert 0 <= min(one.min() for one in grey) < max(one.max() for one in grey) <= 1


@pytest.mark.parametrize("colour", [False, True])
def test_command_output_loads_as_npz(folder: Path, tmp_path: Path, colour: bool) -> None:
    options = ("--images", "30", "--size", "12", "--height", "64", *(["--colour"] if colour else []))
    files = [tmp_path / name for name in ("first.npz", "again.npz", "other.npz")]
    for file, seed in zip(files, "112", strict=True):
        said = whiten(str(folder), "--output", str(file), *options, "--seed", seed)
    assert said.endswith(f"other.npz: 30 images of 12 x 12 x {3 if colour else 1} out of 3 photographs\n")
    first, again, other = (np.load(file)["inputs"] for file in files)
    assert first.tobytes() == again.tobytes() != other.tobytes()
    data = load(NpzData(source="npz", file=str(files[0])), tmp_path)
    assert data.features == (12, 12, 3 if colour else 1)
    assert data.train is not None
    assert (len(data.train), data.train.targets.shape[1]) == (24, 1)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere", "nowhere: no such folder (or photographs, for those of"),
        ("empty", "empty: holds no images (.bmp, .jpeg,"),
        ("torn", "torn/a.png: is no image that can be read"),
    ],
)
def test_unreadable_file_is_a_one_line_error(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "a.png").write_text("torn")
    with pytest.raises(DataError) as refused:
        list(photographs(str(tmp_path / source), 64, 1))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_photographs_of_the_packages() -> None:
    pytest.importorskip("skimage")
    assert len(list(photographs("photographs", 32, 1))) == 12


def test_packages_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.delitem(sys.modules, "skimage.data", raising=False)
    with pytest.raises(
        DataError, match=r"skimage is not there; pip install 'dbelief\[photographs\]', or name a folder"
    ):
        list(photographs("photographs", 32, 1))
