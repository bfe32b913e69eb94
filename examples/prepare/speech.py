"""Makes the data of `examples/speech.yaml`: python examples/prepare/speech.py RECORDINGS examples/speech.npz

RECORDINGS is the Free Spoken Digit Dataset: files DIGIT_SPEAKER_NUMBER.wav in a folder or a tar archive, with 8,000
samples a second of 16 bits in one channel. Files with other names are left out. Recordings 0 to 4 of each digit and
speaker are the test set, 5 to 9 the validation set.

A frame is 40 log-mel energies of a window of 25 ms, one every 10 ms: E_k = log(sum over f of H_k(f) |X(f)|^2 + FLOOR),
X the discrete Fourier transform under a Hamming window. The filters H_k are triangles whose edges are equally spaced in
mel = 2595 log10(1 + f / 700 Hz). Energies have mean 0 and variance 1 over the training set. A sample is 11 frames, as
in DistBelief's speech model (Dean et al. 2012, section 5), and a group is the samples of one recording.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

RATE = 8_000
WINDOW, STEP = 200, 80  # samples
LENGTH = 256  # of the transform
FILTERS = 40
CONTEXT = 11
FLOOR = 1e-8  # the power of the rounding of 16 bits in one window, so that silence has a logarithm
SETS = ("train", "validation", "test")
NAME = re.compile(r"(?:.*/)?([0-9])_([^_/]+)_([0-9]+)\.wav")


def recordings(source: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of each recording of a folder or an archive."""
    if source.is_dir():
        for path in source.rglob("*.wav"):
            yield str(path), path.read_bytes()
        return
    with tarfile.open(source) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, file.read()


def samples_of(content: bytes, name: str) -> np.ndarray:
    """Samples of a WAV file as float64 from -1 to 1."""
    with wave.open(io.BytesIO(content)) as file:
        kind = file.getframerate(), file.getsampwidth(), file.getnchannels()
        held = file.readframes(file.getnframes())
    if kind != (RATE, 2, 1) or len(held) < 2 * WINDOW:
        sys.exit(f"{name}: must have {WINDOW} samples or more, {RATE} a second, of 16 bits, in one channel")
    return np.frombuffer(held, "<i2") / 32768


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Energies of each window that is fully inside the samples: float32, shape (windows, FILTERS)."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::STEP]
    power = np.abs(np.fft.rfft(windows * np.hamming(WINDOW), LENGTH)) ** 2
    return np.log(power @ mel_filters() + FLOOR).astype(np.float32)


def mel_filters() -> np.ndarray:
    """H at the frequencies of the transform: float64, shape (LENGTH // 2 + 1, FILTERS)."""
    highest = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, FILTERS + 2) / 2595) - 1)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    frequency = np.fft.rfftfreq(LENGTH, 1 / RATE)[:, None]
    rising, falling = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling))


def with_context(frames: np.ndarray) -> np.ndarray:
    """Join each frame with its neighbours in time; the first and the last one are repeated beyond the ends."""
    beside = CONTEXT // 2
    padded = np.pad(frames, ((beside, beside), (0, 0)), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded.reshape(-1), CONTEXT * FILTERS)[::FILTERS]


def main(source: Path, output: Path) -> None:
    """Write `SET_inputs` (n, 440), `SET_targets` (n,) and `SET_groups` (n,) of each set, and report their sizes."""
    energies: dict[str, list[np.ndarray]] = {name: [] for name in SETS}
    digits: dict[str, list[int]] = {name: [] for name in SETS}
    for name, content in sorted(recordings(source), key=lambda recording: recording[0].rpartition("/")[2]):
        found = NAME.fullmatch(name)
        if found is not None:
            number = int(found[3])
            where = "test" if number < 5 else "validation" if number < 10 else "train"
            energies[where].append(log_mel(samples_of(content, name)))
            digits[where].append(int(found[1]))
    if not all(energies.values()):
        sys.exit(f"{source}: needs recordings DIGIT_SPEAKER_NUMBER.wav with numbers 0 to 4, 5 to 9, and from 10")
    every = np.concatenate(energies["train"])
    mean, spread = every.mean(axis=0, dtype=np.float64), every.std(axis=0, dtype=np.float64)
    arrays = {}
    for name in SETS:
        lengths = [len(recording) for recording in energies[name]]
        normal = [((recording - mean) / spread).astype(np.float32) for recording in energies[name]]
        arrays[f"{name}_inputs"] = np.concatenate([with_context(recording) for recording in normal])
        arrays[f"{name}_targets"] = np.repeat(np.array(digits[name], np.int64), lengths)
        arrays[f"{name}_groups"] = np.repeat(np.arange(len(lengths)), lengths)
        print(f"{output}: {name}: {sum(lengths):,} frames of {len(lengths):,} recordings")
    np.savez(output, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
