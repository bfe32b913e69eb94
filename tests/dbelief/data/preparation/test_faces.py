"""Labelled faces, whitened as training images are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dbelief.data.preparation import faces
from dbelief.data.preparation.faces import write_faces
from dbelief.data.preparation.whiten import CONTRAST
from dbelief.errors import DataError


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Two hundred images as scikit-image would give them; number 150 is even."""
    images = np.random.default_rng(0).random((200, 25, 25))
    images[150] = 0.25
    monkeypatch.setattr(faces, "_images", lambda: images)
    return images


@pytest.mark.parametrize("size", [24, 25, 16])
def test_images_are_whitened_and_labelled(size: int, given: np.ndarray, tmp_path: Path) -> None:
    assert write_faces(tmp_path / "faces.npz", size) == (200, 100)
    with np.load(tmp_path / "faces.npz") as file:
        inputs, targets = file["inputs"], file["targets"]
    assert (inputs.shape, inputs.dtype.str) == ((200, size, size, 1), "<f4")
    assert targets.tolist() == [1] * 100 + [0] * 100
    np.testing.assert_allclose(inputs.mean(axis=(1, 2, 3)), 0, atol=1e-6)
    assert np.isfinite(inputs).all()
    assert abs(inputs[150]).max() < 1e-12
    spread = np.delete(inputs.var(axis=(1, 2, 3)), 150)
    assert (spread < 1).all()
    assert spread.min() > 0.5 / (0.5 + CONTRAST)


def test_missing_scikit_image_names_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(package: str) -> None:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(faces, "files", missing)
    with pytest.raises(DataError, match=r"^faces: skimage is not there; pip install 'dbelief\[photographs\]'$"):
        write_faces(tmp_path / "faces.npz", 24)
