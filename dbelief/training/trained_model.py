"""The trained model of a run folder, for its outputs on new samples and for evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend, aligned, select_backend
from dbelief.core.layout import Layout
from dbelief.data import Dataset, load
from dbelief.errors import DataError, ModelError
from dbelief.job import Job, load_job
from dbelief.nn import Batch, Model
from dbelief.nn.model import GivesOutputs
from dbelief.rundir.result import read_model

from .initial_values import InitialValues
from .session import build_model

BATCH = 1_000
"""Samples per forward pass."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model with the parameters of a run, made by `load_model`.

    Attributes
    ----------
    job : Job
        The job of the run.
    data : Dataset
        The job's data, all sets.
    model : Model
    layout : Layout
    backend : Backend
        The job's device on this machine.
    views : mapping of name to array
        The parameters on the backend.
    """

    job: Job
    data: Dataset
    model: Model
    layout: Layout
    backend: Backend
    views: Mapping[str, Any]

    def outputs(self, inputs: Any) -> np.ndarray:
        """Outputs of the last layer, before softmax.

        Parameters
        ----------
        inputs : array-like, shape (n, features...)
            Values as in the job's data: the columns of a table in its order, without target and ignored columns. The
            job's `scale` is applied here.

        Returns
        -------
        float32, shape (n, outputs)

        Raises
        ------
        DataError
            The inputs have another shape, or a value that is not finite.
        ModelError
            The model has no method `last_layer`.

        Notes
        -----
        Cost: one forward pass, and the activations of at most `BATCH` samples.
        """
        if not isinstance(self.model, GivesOutputs):
            raise ModelError(f"job {self.job.name}: its model has no method last_layer, so it gives no outputs")
        samples = self._checked(inputs)
        if not len(samples):
            return np.zeros((0, self.data.outputs or 0), np.float32)
        parts = []
        for first in range(0, len(samples), BATCH):
            part = samples[first : first + BATCH]
            batch = Batch(self.backend.to_device(part), self.backend.to_device(self._targets(len(part))))
            parts.append(np.array(self.backend.to_host(self.model.last_layer(self.views, batch)), np.float32))
        return np.concatenate(parts)

    def predict(self, inputs: Any) -> np.ndarray:
        """The class of each sample, where the job has classes; else the outputs.

        Parameters
        ----------
        inputs : array-like, shape (n, features...)
            See `outputs`.

        Returns
        -------
        array, shape (n,)
            Names of classes as text, or their numbers where the data has no names; without classes as of `outputs`.

        Raises
        ------
        DataError, ModelError
            See `outputs`.
        """
        found = self.outputs(inputs)
        if self.data.classes is None:
            return found
        chosen = found.argmax(axis=1)
        named: np.ndarray = chosen if self.data.names is None else np.array(self.data.names)[chosen]
        return named

    def _checked(self, inputs: Any) -> np.ndarray:
        """The inputs as float32, scaled as the job's data."""
        samples = np.asarray(inputs)
        if samples.dtype.kind not in "buif":
            raise DataError(f"inputs are {samples.dtype}, must be numbers")
        if samples.shape[1:] != self.data.features or samples.ndim < 2:
            wanted = ", ".join(("n", *map(str, self.data.features)))
            raise DataError(f"inputs have shape {samples.shape}, expected ({wanted}) for job {self.job.name}")
        split = self.data.train
        scaled: np.ndarray = samples.astype(np.float32) * np.float32(1.0 if split is None else split.scale)
        if not np.isfinite(scaled).all():
            raise DataError(
                f"inputs: sample {int(np.argwhere(~np.isfinite(scaled))[0][0])} has a value that is not finite"
            )
        return scaled

    def _targets(self, count: int) -> np.ndarray:
        if self.data.classes is not None:
            return np.zeros(count, np.int64)
        return np.zeros((count, self.data.outputs or 1), np.float32)


def load_model(run: Path | str) -> TrainedModel:
    """Load the trained model of a run folder.

    Parameters
    ----------
    run
        The folder, `runs/NAME`. The job's data must still be where its `job.yaml` states: sizes and names of classes
        come from there.

    Returns
    -------
    TrainedModel

    Raises
    ------
    DataError
        It is no run folder, it has no model, or the data cannot be read.
    ModelError
        The model is not the one that the job describes.

    Notes
    -----
    Memory: the data, and two copies of the model.
    """
    folder = Path(run)
    if not (folder / "job.yaml").is_file():
        raise DataError(f"{folder}: is not a run folder with a job.yaml, such as runs/NAME")
    job = load_job(folder / "job.yaml", {})
    try:
        data = load(job.data, job.folder)
    except DataError as error:
        needed = "the model's sizes, scale and class names come from the job's data"
        raise DataError(f"{error}; {folder} needs it: {needed}") from error
    backend = select_backend(job.device)
    model, _ = build_model(job, data, backend)
    layout = InitialValues.of(job, model).layout
    flat = aligned(layout.size, np.float32)
    read_model(folder / "model.safetensors", layout, flat, folder)
    return TrainedModel(job, data, model, layout, backend, layout.views(backend.to_device(flat)))
