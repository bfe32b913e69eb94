"""Export of a run's result to a file, in a requested format."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from dbelief.errors import DataError, UserError
from dbelief.job import load_job
from dbelief.process.atomic_file import atomic_write
from dbelief.rundir.result import result_file

Format = Literal["safetensors", "npz"]


def export_run(run: Path, form: Format, output: Path | None, vector: str | None) -> str:
    """Write the model of a run to a file; returns a one-line description of its source.

    Parameters
    ----------
    output
        None: the job's name and the format, in the current directory.
    vector
        See `result_file`.

    Raises
    ------
    UserError, RuntimeFailure
        There is no result, or it is damaged, or the file cannot be written.

    Notes
    -----
    Memory: one segment of a set, or one tensor.
    """
    output = output or Path(f"{load_job(run / 'job.yaml').name}.{form}")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    with result_file(run, vector, scratch=output.parent) as (model, taken):
        _publish(model, form, output)
    return f"{output}: from {taken}"


def _publish(model: Path, form: Format, output: Path) -> None:
    """Convert a safetensors file to the format at its final path, tensor by tensor."""
    try:
        with safe_open(model, framework="numpy") as tensors, atomic_write(output) as file:
            if form == "npz":
                _write_npz(tensors, file)
            else:
                with open(model, "rb") as content:
                    shutil.copyfileobj(content, file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{model}: cannot be read: {error}") from error


def _write_npz(tensors: Any, file: Any) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name in tensors.keys():  # noqa: SIM118  (no mapping)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, tensors.get_tensor(name), allow_pickle=False)
