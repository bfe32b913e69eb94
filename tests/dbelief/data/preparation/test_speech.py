"""Recordings of spoken digits to frames: which set, which label, which group, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
import wave
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dbelief.cli.main import main
from dbelief.data import load
from dbelief.data.preparation.mel import log_mel, with_context
from dbelief.data.preparation.speech import read_wav, write_speech
from dbelief.errors import DataError
from dbelief.job import NpzData


def wav(samples: np.ndarray, rate: int = 8_000, channels: int = 1) -> bytes:
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(samples.dtype.itemsize)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return held.getvalue()


def spoken(seed: int, samples: int = 1_000) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3_000, samples).astype(np.int16)


def recordings() -> dict[str, bytes]:
    """Two digits of one speaker, recordings 3, 4, 7, 10 and 12 of each, of different lengths."""
    names = [(digit, number) for digit in (0, 1) for number in (3, 4, 7, 10, 12)]
    return {f"{d}_ann_{n}.wav": wav(spoken(10 * d + n, 600 + 100 * n + 40 * d)) for d, n in names}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "recordings"
    made.mkdir()
    for name, content in recordings().items():
        (made / name).write_bytes(content)
    (made / "README.md").write_text("what is no recording is left alone")
    return made


def test_samples_are_fractions_of_full_scale() -> None:
    samples = np.array([0, 32767, -32768] * 70, np.int16)
    assert np.array_equal(read_wav(wav(samples), "a.wav"), samples / 32768)


def test_numbers_of_recordings_tell_their_set(folder: Path, tmp_path: Path) -> None:
    assert write_speech(folder, tmp_path / "a.npz") == {"train": (4, 79), "validation": (2, 29), "test": (4, 41)}
    with np.load(tmp_path / "a.npz") as file:
        assert file["train_inputs"].shape == (79, 440)
        assert file["train_inputs"].dtype == np.float32
        # 1,600 and 1,800 samples of digit 0: windows of 200, 80 apart; digit 1 has 40 samples more
        assert np.bincount(file["train_groups"]).tolist() == [18, 21, 19, 21]
        assert np.array_equal(file["train_targets"], np.repeat([0, 0, 1, 1], [18, 21, 19, 21]))
        assert np.bincount(file["test_groups"]).tolist() == [9, 11, 10, 11]


def test_energies_are_normal_over_the_training_frames(folder: Path, tmp_path: Path) -> None:
    write_speech(folder, tmp_path / "a.npz")
    train = [n for n in sorted(recordings()) if n.endswith(("_10.wav", "_12.wav"))]
    every = np.concatenate([log_mel(read_wav(recordings()[name], name), 8_000) for name in train]).astype(np.float64)
    test = log_mel(read_wav(recordings()["1_ann_3.wav"], ""), 8_000)
    with np.load(tmp_path / "a.npz") as file:
        middle = file["train_inputs"][:, 200:240]
        np.testing.assert_allclose(middle.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(middle.std(axis=0), 1, rtol=1e-5)
        expected = with_context(((test - every.mean(axis=0)) / every.std(axis=0)).astype(np.float32))
        np.testing.assert_allclose(file["test_inputs"][file["test_groups"] == 2], expected, rtol=1e-5, atol=1e-6)


def test_an_archive_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_speech(folder, tmp_path / "a.npz")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        for name in sorted(recordings(), reverse=True):
            archive.add(folder / name, f"somewhere/{name}")
    write_speech(tmp_path / "all.tar.gz", tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_command_output_loads_as_npz(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    done = CliRunner().invoke(main, ["data", "speech", str(folder), "--output", str(file)])
    assert done.exit_code == 0
    assert done.output.splitlines()[0] == f"{file}: train: 79 frames of 4 recordings"
    data = load(NpzData(source="npz", file="a.npz"), tmp_path)
    assert data.test is not None
    assert data.test.groups is not None
    assert (data.classes, data.features, len(np.unique(data.test.groups))) == (2, (440,), 4)


def riff(chunks: bytes) -> bytes:
    return b"RIFF" + (4 + len(chunks)).to_bytes(4, "little") + b"WAVE" + chunks


GOOD = wav(spoken(0))
DAMAGED = {
    "empty": (b"", "is empty"),
    "text": (b"hello, world", "not a WAV file, or a damaged one (file does not start with riff id)"),
    "header only": (GOOD[:20], "not a WAV file, or a damaged one"),
    "no format": (riff(b"data\x04\0\0\0\0\0\0\0"), "not a WAV file, or a damaged one"),
    "cut short": (GOOD[:-500], "the WAV file is cut short: 750 of 1000 samples are there"),
    "in the midst of a sample": (GOOD[:-501], "cut short"),
    "another rate": (wav(spoken(0), 16_000), "has 16000 samples a second of 16 bits in 1 channels, must have 8000"),
    "stereo": (wav(spoken(0), channels=2), "of 16 bits in 2 channels, must have 8000 of 16 bits in 1"),
    "8 bits": (wav(spoken(0).astype(np.uint8)), "of 8 bits in 1 channels"),
    "short": (wav(spoken(0, 199)), "holds 199 samples, fewer than the 200 of one window (25 ms)"),
}


@pytest.mark.parametrize("which", DAMAGED)
def test_recordings_that_cannot_be_used_are_named(which: str, folder: Path, tmp_path: Path) -> None:
    content, words = DAMAGED[which]
    (folder / "1_ann_7.wav").write_bytes(content)
    with pytest.raises(DataError) as caught:
        write_speech(folder, tmp_path / "a.npz")
    assert str(caught.value).startswith(f"{folder / '1_ann_7.wav'}: {words}") or words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "a.npz").exists()


def test_no_end_of_a_recording_gets_past(folder: Path) -> None:
    for end in range(0, len(GOOD), 53):
        with pytest.raises(DataError, match=r"^0_ann_1\.wav: "):
            read_wav(GOOD[:end], "0_ann_1.wav")


@pytest.mark.parametrize("name", ["hello.wav", "10_ann_3.wav", "1_ann_x.wav", "1_ann.wav", "x_ann_3.wav"])
def test_other_names_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).write_bytes(GOOD)
    done = CliRunner().invoke(main, ["data", "speech", str(folder), "--output", str(tmp_path / "a.npz")])
    assert done.exit_code == 2
    expected = "must be named DIGIT_SPEAKER_NUMBER.wav, for example 7_jackson_32.wav"
    assert done.output == f"Error: {folder / name}: {expected}\n"


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("_[34].wav", "the test set is empty: no recording has a number of 0 to 4"),
        ("_7.wav", "the validation set is empty: no recording has a number of 5 to 9"),
        ("_1[02].wav", "the train set is empty: no recording has a number of 10 or higher"),
        (".wav", "holds no recordings (.wav)"),
    ],
)
def test_empty_sets_are_refused(missing: str, words: str, folder: Path, tmp_path: Path) -> None:
    for path in folder.glob(f"*{missing}"):
        path.unlink()
    with pytest.raises(DataError) as caught:
        write_speech(folder, tmp_path / "a.npz")
    assert str(caught.value) == f"{folder}: {words}"


def test_sources_that_are_none_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file$"):
        write_speech(tmp_path / "nowhere", tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"README\.md: neither a folder nor a tar archive \("):
        write_speech(folder / "README.md", tmp_path / "a.npz")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(folder, "recordings")
    content = (tmp_path / "all.tar.gz").read_bytes()
    for end in (0, 10, len(content) // 2, len(content) - 9):
        (tmp_path / "torn.tar.gz").write_bytes(content[:end])
        with pytest.raises(DataError, match=r"torn\.tar\.gz: "):
            write_speech(tmp_path / "torn.tar.gz", tmp_path / "a.npz")


def test_the_dataset_as_it_comes(tmp_path: Path) -> None:
    data = os.environ.get("DBELIEF_DATA")
    archive = Path(data or "") / "fsdd" / "fsdd-recordings.tar.gz"
    if data is None or not archive.exists():
        pytest.skip(f"{'$DBELIEF_DATA' if data is None else archive} is not there: the recordings of FSDD")
    some = tmp_path / "some.tar"
    with tarfile.open(archive) as whole, tarfile.open(some, "w") as part:
        for member in whole:
            if "_theo_" in member.name:  # one of six speakers
                part.addfile(member, whole.extractfile(member))
    made = write_speech(some, tmp_path / "a.npz")
    assert {name: recordings for name, (recordings, _) in made.items()} == {"train": 400, "validation": 50, "test": 50}
    with np.load(tmp_path / "a.npz") as file:
        inputs, groups, targets = (file[f"test_{what}"] for what in ("inputs", "groups", "targets"))
    assert np.isfinite(inputs).all()
    assert abs(inputs).max() < 12
    firsts = np.unique(groups, return_index=True)[1]
    assert targets[firsts].tolist() == [digit for digit in range(10) for _ in range(5)]
