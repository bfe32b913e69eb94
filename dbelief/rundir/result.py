"""Result of a run: its final model, or that of its newest valid snapshot set where the run did not end."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from dbelief.checkpoint.model_tensors import read_tensors
from dbelief.checkpoint.safetensors_io import write_model
from dbelief.checkpoint.set_storage import LocalSets, latest_valid
from dbelief.checkpoint.shard_file import read_segments
from dbelief.core.layout import Layout, SegmentSpan
from dbelief.core.push import PARAMETERS
from dbelief.core.sample_form import SampleForm
from dbelief.core.whole_numbers import split, whole_type
from dbelief.errors import DataError, ModelError, SnapshotError, UserError
from dbelief.job import Job, load_job
from dbelief.rundir.model_metadata import model_metadata
from dbelief.rundir.summary import has_model

log = logging.getLogger(__name__)

BEST = "best"
"""Alias of the named vector that holds the parameters of the best evaluation."""


NO_MODEL = "has no model: the run failed, or has not ended; `dbelief export` takes its newest snapshot set"


@contextmanager
def result_file(run: Path, vector: str | None = None, scratch: Path | None = None) -> Iterator[tuple[Path, str]]:
    """A run's result as a safetensors file, which exists within the `with` block, and a description of its source.

    The source is model.safetensors where the run has ended, else the newest valid snapshot set.

    Parameters
    ----------
    vector
        A named vector of the newest valid set, or "best"; None: the job's result.
    scratch
        Folder for a file that is made from a set; None: the system's temporary folder.

    Raises
    ------
    UserError, RuntimeFailure
        It is no run, it has no result, or the result is damaged.

    Notes
    -----
    Memory: one segment of a set.
    """
    job, model = load_job(run / "job.yaml"), run / "model.safetensors"
    if vector is None and model.exists() and (has_model(run) or not LocalSets(run / "snapshots").started()):
        yield model, str(model)
        return
    found = newest_set(run, job, vector)
    with tempfile.TemporaryDirectory(prefix=".dbelief-", dir=scratch) as folder:
        whole = Path(folder) / "model.safetensors"
        about = model_metadata(job, found.samples_form, set=found.folder.name, vector=found.vector)
        write_model(whole, found.layout, found.segments(job), about)
        yield whole, f"vector {found.vector!r} of snapshot set {found.folder}, after {found.samples:,} samples"


def read_result(run: Path, layout: Layout, out: np.ndarray) -> str:
    """Read a run's result into (N,) float32 `out`; returns a description of its source.

    Raises
    ------
    ModelError
        Its tensors are not those of the layout.
    UserError, RuntimeFailure
        As `result_file` does.
    """
    with result_file(run) as (model, taken):
        read_model(model, layout, out, run)
    return taken


def read_model(model: Path, layout: Layout, out: np.ndarray, run: Path) -> None:
    """Read a run's model.safetensors into (N,) float32 `out`.

    Raises
    ------
    DataError
        It is missing, or damaged.
    ModelError
        Its tensors are not those of the layout; names the run, the first different tensor, and both shapes.

    Notes
    -----
    Memory: a second copy of the model.
    """
    if not model.exists():
        raise DataError(f"{run}: {NO_MODEL}")
    try:
        tensors = read_tensors(model)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{model}: cannot be read: {error}") from error
    held = {name: values.shape for name, values in tensors.items()}
    wanted = {name: box.file_shape for box in layout.boxes for name in box.names if name == box.name or name in held}
    for name in [*wanted, *held]:
        there, here = held.get(name, "missing"), wanted.get(name, "missing")
        if there != here:
            raise ModelError(f"{run}: holds another model: tensor {name!r} is {there} there, and {here} in the job's")
    for box in layout.boxes:
        if (dtype := whole_type(box.dtype)) is not None:
            tensors[box.name] = split(tensors[box.name].astype(dtype))
    layout.flatten(tensors, out)


@dataclass(frozen=True)
class SnapshotSource:
    """A valid snapshot set, and the requested vector of it.

    Attributes
    ----------
    layout, nominal_length
        Of its dense segments.
    samples
        Trained when it was begun.
    """

    folder: Path
    layout: Layout
    nominal_length: int
    samples: int
    vector: str
    samples_form: SampleForm | None

    def segments(self, job: Job) -> Iterator[tuple[SegmentSpan, np.ndarray]]:
        """Every segment of the vector; its numbers are valid until the next iteration."""
        spans = self.layout.segments(self.nominal_length)
        for stored in read_segments(self.folder, self.folder.name, job.name, job.strategy.at_shards.name, spans):
            if self.vector not in stored.arrays:
                known = ", ".join(sorted(stored.arrays))
                raise UserError(f"{self.folder}: holds no vector {self.vector!r} whole; there is: {known}")
            yield stored.span, stored.arrays[self.vector].astype(np.float32, copy=False)


def newest_set(run: Path, job: Job, vector: str | None = None) -> SnapshotSource:
    """The newest valid snapshot set of a run; `vector`: see `result_file`.

    Raises
    ------
    UserError, RuntimeFailure
        As `result_file` does.
    """
    snapshots = run / "snapshots"
    sets = LocalSets(snapshots)
    if not sets.complete():
        raise UserError(f"{run}: holds neither model.safetensors nor a complete snapshot set")
    set_id, state, skipped = latest_valid(sets, job.name, job.strategy.at_shards.name)
    for torn in skipped:
        log.warning(f"snapshot set {torn.set_id} is not whole, an older one is taken: {torn.reason}")
    try:
        layout, nominal = Layout.from_rows(state["boxes"]), int(state["nominal_length"])
        best, samples = state["progress"]["best"], int(state["progress"]["samples"])
        form = SampleForm.parse(state["samples"]) if state.get("samples") else None  # none of an earlier version
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(f"{snapshots / set_id / 'set.json'}: does not describe the model: {error!r}") from error
    kept = best["vector"] if best else ""
    if vector == BEST and not kept:
        raise UserError(
            f"{snapshots / set_id}: holds no best parameters: the job keeps none, or none were evaluated yet"
        )
    if vector == BEST or (vector is None and job.keeps_best):
        vector = kept
    return SnapshotSource(snapshots / set_id, layout, nominal, samples, vector or PARAMETERS, form)
