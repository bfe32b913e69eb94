"""The scripts that make the data of our examples: what their files hold, beside SciPy and by the source `npz`."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import tarfile
import wave
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from scipy.signal import get_window, spectrogram

from dbelief.data import load
from dbelief.job import NpzData

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "prepare"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare(name: str, *arguments: object, path: Path | None = None) -> str:
    """Run a script with a folder of more packages, and return its last line."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)]
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return (done.stdout + done.stderr).splitlines()[-1]


def scene(seed: int, height: int = 96, width: int = 128) -> np.ndarray:
    """Amplitude 1 / f, as photographs have it, and three channels that go together."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    spectra = np.fft.rfft2(rng.standard_normal((4, height, width))) / np.maximum(frequency, 1 / width)
    light, *tints = np.fft.irfft2(spectra)
    return np.stack([light + 0.3 * tint for tint in tints], axis=-1)


@pytest.fixture
def spoken(tmp_path: Path) -> Path:
    """Two digits of one speaker, recordings 3, 4, 7, 10 and 12 of each, of different lengths."""
    (tmp_path / "spoken").mkdir()
    for digit, number in [(digit, number) for digit in (0, 1) for number in (3, 4, 7, 10, 12)]:
        samples = np.random.default_rng(10 * digit + number).normal(0, 3_000, 600 + 100 * number + 40 * digit)
        with wave.open(str(tmp_path / "spoken" / f"{digit}_ann_{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8_000, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())
    return tmp_path / "spoken"


def test_energies_are_those_of_scipy() -> None:
    speech = script("speech")
    samples = np.random.default_rng(0).uniform(-1, 1, 4_000) * np.hanning(4_000)
    weights = get_window("hamming", 200, fftbins=False)
    frequency, _, spectrum = spectrogram(
        samples, 8_000, weights, 200, 120, 256, detrend=False, scaling="spectrum", mode="complex"
    )
    power = np.abs(spectrum * weights.sum()) ** 2
    top = 1127.01048 * math.log(1 + 8_000 / 1400)  # the other usual way of writing mel
    edges = [700 * (math.exp(top * i / 41 / 1127.01048) - 1) for i in range(42)]
    energies = [np.interp(frequency, edges[k : k + 3], [0, 1, 0]) @ power for k in range(40)]
    np.testing.assert_allclose(speech.log_mel(samples), np.log(np.array(energies).T + 1e-8), rtol=2e-6, atol=2e-5)


def test_recordings_become_three_sets_of_groups(spoken: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    assert prepare("speech", spoken, file) == f"{file}: test: 41 frames of 4 recordings"
    with np.load(file) as arrays:
        # 1,600 and 1,800 samples of digit 0: windows of 200, 80 apart; digit 1 has 40 samples more
        assert np.bincount(arrays["train_groups"]).tolist() == [18, 21, 19, 21]
        assert np.array_equal(arrays["train_targets"], np.repeat([0, 0, 1, 1], [18, 21, 19, 21]))
        middle = arrays["train_inputs"][:, 200:240]
        assert np.array_equal(arrays["train_inputs"][0, :40], middle[0])
        assert np.array_equal(arrays["train_inputs"][5, :40], middle[0])
    np.testing.assert_allclose(middle.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(middle.std(axis=0), 1, rtol=1e-5)
    data = load(NpzData(source="npz", file="a.npz"), tmp_path)
    assert (data.classes, data.features) == (2, (440,))


def test_an_archive_of_recordings_gives_the_same_bytes(spoken: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(spoken, "somewhere")
    prepare("speech", spoken, tmp_path / "a.npz")
    prepare("speech", tmp_path / "all.tar.gz", tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_whitened_photographs_have_equal_power_at_all_frequencies() -> None:
    module = script("photographs")
    made = module.whitened(scene(1))
    power = abs(np.fft.rfft2(made[..., 0])) ** 2
    frequency = np.hypot(np.fft.fftfreq(96)[:, None], np.fft.rfftfreq(128)[None, :])
    bands = [power[(frequency >= low) & (frequency < low + 0.1)].mean() for low in (0.05, 0.15, 0.25, 0.35)]
    assert max(bands) < 1.6 * min(bands)
    pixels = np.concatenate([one.reshape(-1, 3) for one in module.uncorrelated([made, module.whitened(scene(2))])])
    np.testing.assert_allclose(pixels.T @ pixels / len(pixels), np.eye(3), atol=1e-9)


@pytest.mark.parametrize("colour", [False, True])
def test_images_are_cut_from_a_folder_of_photographs(tmp_path: Path, colour: bool) -> None:
    (tmp_path / "scenes" / "more").mkdir(parents=True)
    for seed, name in enumerate(("b.png", "more/c.png")):
        values = scene(seed)
        pixels = 255 * (values - values.min()) / np.ptp(values)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "scenes" / name)
    file, options = tmp_path / "a.npz", ["--images", 30, "--size", 12, "--height", 64, *["--colour"] * colour]
    said = prepare("photographs", file, "--folder", tmp_path / "scenes", *options)
    assert said == f"{file}: 30 images out of 2 photographs"
    assert load(NpzData(source="npz", file="a.npz"), tmp_path).features == (12, 12, 3 if colour else 1)
    inputs = np.load(file)["inputs"]
    np.testing.assert_allclose(inputs.mean(axis=(1, 2, 3)), 0, atol=1e-6)
    assert (inputs.std(axis=(1, 2, 3)) < 1).all()


def test_faces_are_whitened_and_labelled(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((200, 25, 25))
    images[150] = 0.25
    (tmp_path / "skimage" / "data").mkdir(parents=True)
    (tmp_path / "skimage" / "data" / "__init__.py").touch()
    np.save(tmp_path / "skimage" / "data" / "lfw_subset.npy", images)
    file = tmp_path / "faces.npz"
    assert prepare("faces", file, path=tmp_path) == f"{file}: 200 images of 24 x 24 x 1, 100 of them faces"
    with np.load(file) as arrays:
        assert arrays["inputs"].shape == (200, 24, 24, 1)
        assert abs(arrays["inputs"][150]).max() < 1e-12
        assert arrays["targets"].tolist() == [1] * 100 + [0] * 100
