"""A run's model as a file of its own: as the run ended, or out of its newest snapshot set where it did not."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from dbelief.console import announce
from dbelief.errors import DataError, Mistake, SnapshotError
from dbelief.export import write_model
from dbelief.files import whole_file
from dbelief.job import Job, load_job
from dbelief.layout import Layout, Span, cut
from dbelief.parts import read_parts
from dbelief.pushes import PARAMETERS
from dbelief.report.summary import read_summary
from dbelief.sets import newest_set, sets_in

Format = Literal["safetensors", "npz"]
BEST = "best"
"""Stands for the named vector that holds the parameters of the best evaluation."""


def export_run(run: Path, form: Format, output: Path | None, vector: str | None) -> str:
    """Write the model of a run as a file; says what was taken, in one line.

    Taken is model.safetensors where the run came to its end, else the newest whole snapshot set.

    Parameters
    ----------
    output
        None: the job's name and the format, in the current directory.
    vector
        A named vector of the newest whole set, or "best"; None: what is the job's result.

    Raises
    ------
    Mistake, Failure
        Nothing is there to be exported, or it is damaged, or the file cannot be written.

    Notes
    -----
    Memory: one segment of a set, or one tensor.
    """
    job = load_job(run / "job.yaml")
    output = output or Path(f"{job.name}.{form}")
    model = run / "model.safetensors"
    if vector is None and model.exists() and (_is_done(run) or not sets_in(run / "snapshots")):
        _publish(model, form, output)
        return f"{output}: from {model}"
    found = _newest(run, job, vector)
    with tempfile.TemporaryDirectory(prefix=".dbelief-", dir=_folder(output)) as scratch:
        whole = Path(scratch) / "model.safetensors"
        about = {"job": job.name, "set": found.folder.name, "vector": found.vector}
        write_model(whole, found.layout, found.segments(job), about)
        _publish(whole, form, output)
    return f"{output}: vector {found.vector!r} of snapshot set {found.folder}, after {found.samples:,} samples"


@dataclass(frozen=True)
class _Set:
    """A whole snapshot set, and the vector of it that is wanted."""

    folder: Path
    layout: Layout
    nominal_length: int
    samples: int
    vector: str

    def segments(self, job: Job) -> Iterator[tuple[Span, np.ndarray]]:
        """Every segment of the vector; its numbers are valid until the next is asked for."""
        spans = cut(self.layout.rank_ranges(), self.nominal_length)
        for stored in read_parts(self.folder, self.folder.name, job.name, job.strategy.rule.name, spans):
            if self.vector not in stored.arrays:
                known = ", ".join(sorted(stored.arrays))
                raise Mistake(f"{self.folder}: holds no vector {self.vector!r} whole; there is: {known}")
            yield stored.span, stored.arrays[self.vector].astype(np.float32, copy=False)


def _newest(run: Path, job: Job, vector: str | None) -> _Set:
    snapshots = run / "snapshots"
    if not any((folder / "set.json").exists() for folder in sets_in(snapshots)):
        raise Mistake(f"{run}: holds neither model.safetensors nor a complete snapshot set")
    set_id, state, skipped = newest_set(snapshots, job.name, job.strategy.rule.name)
    for torn in skipped:
        announce(f"snapshot set {torn.set_id} is not whole, an older one is taken: {torn.reason}")
    try:
        layout, nominal = Layout.from_rows(state["boxes"]), int(state["nominal_length"])
        best, samples = state["progress"]["best"], int(state["progress"]["samples"])
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(f"{snapshots / set_id / 'set.json'}: does not describe the model: {error!r}") from error
    kept = best["vector"] if best else ""
    if vector == BEST and not kept:
        raise Mistake(f"{snapshots / set_id}: holds no best parameters: the job keeps none, or none were evaluated yet")
    if vector == BEST or (vector is None and job.keeps_best):
        vector = kept
    return _Set(snapshots / set_id, layout, nominal, samples, vector or PARAMETERS)


def _is_done(run: Path) -> bool:
    """Whether the run came to its end: a model may be there of an end that it was resumed after."""
    try:
        return read_summary(run / "summary.json").model_dump().get("state") == "done"
    except DataError:
        return False


def _folder(output: Path) -> Path:
    if not output.parent.is_dir():
        raise Mistake(f"{output}: there is no folder {output.parent}")
    return output.parent


def _publish(model: Path, form: Format, output: Path) -> None:
    """Give a safetensors file its format and place, tensor by tensor."""
    _folder(output)
    try:
        with safe_open(model, framework="numpy") as tensors, whole_file(output) as file:
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
