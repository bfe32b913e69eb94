"""Spoken digits as training frames, from recordings named as in the Free Spoken Digit Dataset.

DIGIT_SPEAKER_NUMBER.wav: 8,000 samples a second of 16 bits, one channel; in a folder, or in an archive (.tar, .tar.gz).
Recordings 0 to 4 of each digit and speaker are the test set, as defined there; 5 to 9 the validation set, the others
the training set. Energies (`mel.py`) are shifted and scaled, for each filter separately, to mean 0 and variance 1 over
the training frames. A frame's label is the digit of its recording, its group the recording's number: a recording is
classified by all of its frames together (`dbelief evaluate`), and no two sets share one.
"""

from __future__ import annotations

import io
import re
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dbelief.data.files.contents import read
from dbelief.data.files.data_file import file_at
from dbelief.data.files.errors import cause
from dbelief.data.files.locations import files_below, is_hidden
from dbelief.errors import DataError
from dbelief.process.atomic_file import atomic_write

from .mel import log_mel, window_length, with_context

RATE = 8_000
SETS = {"train": range(10, 10**6), "validation": range(5, 10), "test": range(5)}
"""Numbers of recordings, of each digit and speaker."""

_NAME = re.compile(r"([0-9])_([^_]+)_([0-9]{1,6})\.wav")


def write_speech(source: Path, path: Path) -> dict[str, tuple[int, int]]:
    """Convert recordings to frames, and write an .npz file that the source `npz` reads.

    For each set it holds `SET_inputs` float32 (n, 440), `SET_targets` int64 (n,) and `SET_groups` int64 (n,). The
    result does not depend on where the recordings are stored. Memory: all frames twice, 1,760 bytes each.

    Returns
    -------
    mapping of "train", "validation", "test" to (recordings, frames)

    Raises
    ------
    DataError
        There is no such source; a recording is damaged, too short, in another format, or not named as required; or a
        set has none.
    WriteFailed
    """
    energies: dict[str, list[np.ndarray]] = {name: [] for name in SETS}
    digits: dict[str, list[int]] = {name: [] for name in SETS}
    for where, content in sorted(_recordings(source), key=lambda recording: _file_name(recording[0])):
        digit, name = _digit_and_set(where)
        energies[name].append(log_mel(read_wav(content, where), RATE))
        digits[name].append(digit)
    for name, numbers in SETS.items():
        if not energies[name]:
            which = f"{numbers[0]} to {numbers[-1]}" if name != "train" else f"{numbers[0]} or higher"
            raise DataError(f"{source}: the {name} set is empty: no recording has a number of {which}")
    every = np.concatenate(energies["train"])
    mean, spread = every.mean(axis=0, dtype=np.float64), every.std(axis=0, dtype=np.float64)
    spread[spread == 0] = 1
    arrays: dict[str, np.ndarray] = {}
    for name, recordings in energies.items():
        lengths = [len(recording) for recording in recordings]
        normal = (((recording - mean) / spread).astype(np.float32) for recording in recordings)
        arrays[f"{name}_inputs"] = np.concatenate([with_context(recording) for recording in normal])
        arrays[f"{name}_targets"] = np.repeat(np.array(digits[name], np.int64), lengths)
        arrays[f"{name}_groups"] = np.repeat(np.arange(len(lengths)), lengths)
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type] # no array is named allow_pickle
    return {name: (len(energies[name]), len(arrays[f"{name}_targets"])) for name in SETS}


def read_wav(content: bytes, where: str) -> np.ndarray:
    """Read samples of 8 kHz, 16 bits, one channel; as float64 from -1 to 1, at least a window's of `mel.py`.

    Raises
    ------
    DataError
        Names `where` and the error.
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            kind = file.getframerate(), 8 * file.getsampwidth(), file.getnchannels()
            count, held = file.getnframes(), file.readframes(file.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:
        raise DataError(f"{where}: not a WAV file, or a damaged one ({cause(error)})") from None
    if kind != (RATE, 16, 1):
        has = f"{kind[0]} samples a second of {kind[1]} bits in {kind[2]} channels"
        raise DataError(
            f"{where}: has {has}, must have {RATE} of 16 bits in 1 (sox IN.wav -r {RATE} -b 16 -c 1 OUT.wav)"
        )
    if len(held) != 2 * count:
        raise DataError(f"{where}: the WAV file is cut short: {len(held) // 2} of {count} samples are there")
    if count < window_length(RATE):
        raise DataError(f"{where}: holds {count} samples, fewer than the {window_length(RATE)} of one window (25 ms)")
    return np.frombuffer(held, "<i2") / 32768


def _digit_and_set(where: str) -> tuple[int, str]:
    found = _NAME.fullmatch(_file_name(where))
    if found is None:
        raise DataError(f"{where}: must be named DIGIT_SPEAKER_NUMBER.wav, for example 7_jackson_32.wav")
    number = int(found[3])
    return int(found[1]), next(name for name, numbers in SETS.items() if number in numbers)


def _file_name(where: str) -> str:
    return where.rpartition("/")[2]


def _is_recording(name: str) -> bool:
    return name.endswith(".wav") and not any(is_hidden(part) for part in name.split("/") if part != ".")


def _recordings(source: Path) -> Iterator[tuple[str, bytes]]:
    """Location of each recording, for messages, and its bytes."""
    found = False
    try:
        if source.is_dir():
            for recording in files_below(source).values():
                if recording.suffix == ".wav":
                    found = True
                    yield str(recording), read(recording)
        else:
            # Unpacked completely first: for a truncated archive, tarfile would return its intact part without an error.
            with tarfile.open(fileobj=io.BytesIO(read(file_at(source))), mode="r:") as archive:
                for member in archive:
                    file = archive.extractfile(member) if _is_recording(member.name) else None
                    if file is not None:
                        found = True
                        yield f"{source}: {member.name}", file.read()
    except tarfile.TarError as error:
        raise DataError(f"{source}: neither a folder nor a tar archive ({cause(error)})") from None
    except OSError as error:
        raise DataError(f"{error.filename or source}: {cause(error)}") from None
    if not found:
        raise DataError(f"{source}: holds no recordings (.wav)")
