"""The trained model of a run folder or a model file, for its outputs on new samples and for evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from dbelief.arrays.backend import Backend, aligned, select_backend
from dbelief.core.layout import Layout
from dbelief.core.sample_form import SampleForm
from dbelief.data import Samples, SparseSplit, Split, load
from dbelief.data.bags.batch import SparseBatch
from dbelief.data.bags.split import BagSplit, stored
from dbelief.data.tables.frames import columns_of, is_frame
from dbelief.data.tables.table_encoder import TableEncoder
from dbelief.errors import DataError, ModelError
from dbelief.evaluation.evaluate import batches
from dbelief.job import BagsData, Job, ScriptModel, load_job
from dbelief.nn import Batch, Model, SparseRows
from dbelief.nn.model import GivesOutputs
from dbelief.nn.network import Network
from dbelief.nn.torch_state import fill_module
from dbelief.rundir.model_metadata import ModelMetadata
from dbelief.rundir.result import NO_MODEL, read_model
from dbelief.rundir.stored.copies import local_copy, parse_run

from .initial_values import InitialValues
from .saved_network import read_set
from .session import build_model, made_by_its_script

Module = TypeVar("Module")
"""A torch module."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model with the parameters of a run, made by `load_model`.

    Attributes
    ----------
    job : Job
        The job of the run.
    samples : SampleForm
        Form of its data's samples.
    model : Model
    layout : Layout
    backend : Backend
        The job's device on this machine.
    views : mapping of name to array
        The parameters on the backend.
    """

    job: Job
    samples: SampleForm
    model: Model
    layout: Layout
    backend: Backend
    views: Mapping[str, Any]

    def outputs(self, inputs: Any, encoded: bool = False) -> np.ndarray:
        """Outputs of the last layer, before softmax.

        Parameters
        ----------
        inputs : array-like, or SparseRows, shape (n, features...)
            Values as in the job's data: the columns of a table in its order, without target and ignored columns, with
            texts for categories and dates, and None for what is missing; or a frame of pandas, in which columns are
            found by their names. The job's `scale` is applied here. Where layers read tables a SparseBatch of
            `dbelief.data.bags`, of n samples, whose labels and weights are not used.
        encoded : bool
            Whether rows of a table with categories, dates or gaps have been read as numbers for the model already.

        Returns
        -------
        float32, shape (n, outputs)

        Raises
        ------
        DataError
            The inputs have another shape, or a value that is not finite.
        ModelError
            The model has no method `last_layer`, or that gives another number of outputs.

        Notes
        -----
        Cost: one forward pass, and the activations of as many samples as `dbelief.evaluation` has at a time.
        """
        if not isinstance(self.model, GivesOutputs):
            raise ModelError(f"job {self.job.name}: its model has no method last_layer, so it gives no outputs")
        samples = self._checked(inputs, encoded)
        if not len(samples):
            return np.zeros((0, self.samples.outputs), np.float32)
        return np.concatenate([self._outputs_of(batch) for batch in batches(self.model, samples, self.backend)])

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
        if self.samples.classes is None:
            return found
        chosen = found.argmax(axis=1)
        named: np.ndarray = chosen if self.samples.names is None else np.array(self.samples.names)[chosen]
        return named

    def _outputs_of(self, batch: Batch) -> np.ndarray:
        """Outputs of one forward pass.

        Raises
        ------
        ModelError
            Their shape, which a model of the user's own decides, is not that of its samples or classes.
        """
        assert isinstance(self.model, GivesOutputs)
        found = np.array(self.backend.to_host(self.model.last_layer(self.views, batch)), np.float32)
        classes = self.samples.classes
        if found.shape[:1] != (len(batch),) or (classes is not None and found.shape != (len(batch), classes)):
            what = f"{found.shape}, expected ({len(batch)}, {'...' if classes is None else classes})"
            raise ModelError(f"job {self.job.name}: last_layer gives an array of shape {what}")
        return found

    def _checked(self, inputs: Any, encoded: bool) -> Samples:
        """The inputs as float32, scaled as the job's data; whole numbers as int64; rows of a table encoded.

        Their targets are 0.
        """
        if isinstance(self.job.data, BagsData):
            return self._bags(inputs)
        if isinstance(inputs, SparseRows):
            self._check_shape(inputs.shape)
            return SparseSplit.of(inputs, self._targets(len(inputs)))
        if self.samples.encoder is not None and not encoded:
            inputs = TableEncoder.restore(self.samples.encoder).encode_rows(inputs, "inputs")
        elif is_frame(inputs) and self.samples.columns is not None:
            inputs = np.stack(columns_of(inputs, self.samples.columns, "inputs"), axis=1)
        samples = np.asarray(inputs)
        if samples.dtype.kind not in "buif":
            raise DataError(f"inputs are {samples.dtype}, must be numbers")
        self._check_shape(samples.shape)
        if self.samples.whole:
            if samples.dtype.kind not in "ui":
                raise DataError(f"inputs are {samples.dtype}, must be whole numbers for job {self.job.name}")
            return Split(np.ascontiguousarray(samples, np.int64), self._targets(len(samples)))
        with np.errstate(over="ignore", under="ignore"):  # infinite values are detected right after
            scaled = np.ascontiguousarray(samples, np.float32) * np.float32(self.samples.scale)
        if not np.isfinite(scaled).all():
            raise DataError(
                f"inputs: sample {int(np.argwhere(~np.isfinite(scaled))[0][0])} has a value that is not finite"
            )
        return Split(scaled, self._targets(len(samples)))

    def _bags(self, inputs: Any) -> Samples:
        """Samples of bags of keys; raise DataError where the inputs are none, or lack a column that is read."""
        name = self.job.name
        if not isinstance(inputs, SparseBatch):
            raise DataError(
                f"inputs are {type(inputs).__name__}, must be a SparseBatch of dbelief.data.bags for job {name}"
            )
        assert isinstance(self.model, Network)
        for column in chain.from_iterable(self.model.reads.values()):
            if column not in inputs.bags:
                raise DataError(f"inputs have no column {column!r}, which job {name} reads: {', '.join(inputs.bags)}")
        return BagSplit(stored(inputs), np.arange(len(inputs)), self._targets(len(inputs)))

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise DataError where inputs of this shape are not of the job's samples."""
        if shape[1:] != self.samples.features or len(shape) < 2:
            wanted = ", ".join(("n", *map(str, self.samples.features)))
            raise DataError(f"inputs have shape {shape}, expected ({wanted}) for job {self.job.name}")

    def _targets(self, count: int) -> np.ndarray:
        if self.samples.classes is not None:
            return np.zeros(count, np.int64)
        return np.zeros((count, self.samples.outputs), np.float32)


def read_about(run: Path | str) -> Mapping[str, Any]:
    """What the script of a job said of its samples: see `dbelief.torch.Sync`.

    Parameters
    ----------
    run
        See `load_model`.

    Returns
    -------
    mapping of name to what JSON can hold
        Empty where the script said nothing, and for jobs with data of their own.

    Raises
    ------
    DataError
        See `load_model`.
    """
    with local_copy(parse_run(run), parameters=True) as path:
        return ModelMetadata.read(_model_file(path)).about


@overload
def load_model(run: Path | str) -> TrainedModel: ...


@overload
def load_model(run: Path | str, into: Module) -> Module: ...


def load_model(run: Path | str, into: Any = None) -> Any:
    """Load a trained model.

    Parameters
    ----------
    run
        The folder of the run, `runs/NAME`, its URL, or a model file, such as its `model.safetensors` or an export. The
        job's data is not needed. A Python model needs its source: that of the run, or, for a file that was moved or
        exported and of which the job names a relative path, beside the file. Layers that read tables need the run:
        parameters and rows are those of its newest valid snapshot set, which of a run that has ended is the last, and a
        key without a row reads as its initial row.
    into
        A torch module of the trained one's kind. It is filled and returned; neither job nor source is needed then. A
        script's module is used in this way alone; where it has rows of tables, see `load_tables`.

    Returns
    -------
    TrainedModel, or `into`

    Raises
    ------
    DataError
        It is neither, the run has no model, or the file is damaged. Of a model of an earlier version: the job's data
        cannot be read, from which the sizes are taken then.
    ModelError
        The model is not the one that the job describes, or not that of `into`; or it is a script's, without `into`;
        or its layers read tables, and the file is not in its run.
    UserError, RuntimeFailure
        Layers read tables, and the run has no valid set.

    Notes
    -----
    Memory: two copies of the model; of tables all rows, without the state of their rules, and a bucket.
    """
    with local_copy(parse_run(run), parameters=True) as path:
        return _load(path, into)


def _load(path: Path, into: Any) -> Any:
    file = _model_file(path)
    if into is not None:
        fill_module(into, file)
        return into
    job = load_job(path / "job.yaml", {}) if path.is_dir() else _job_of(path)
    if isinstance(job.model, ScriptModel):
        raise made_by_its_script(job)
    samples = ModelMetadata.read(file).samples or _form_of_data(job, file)
    device = job.computes_on
    backend = select_backend("auto" if device == "cuda" else device)  # it may be used where there is no GPU
    model, _ = build_model(job, samples, backend)
    layout = InitialValues.of(job, model).layout
    flat = aligned(layout.size, np.float32)
    if isinstance(model, Network) and model.reads:
        if not _in_run(file):
            raise ModelError(
                f"job {job.name}: its model reads rows of tables, which {file} does not have: name the folder of the "
                "run, whose snapshot sets have them"
            )
        read_set(file.parent, model, layout, flat)
    else:
        read_model(file, layout, flat, path)
    return TrainedModel(job, samples, model, layout, backend, layout.views(backend.to_device(flat)))


def _model_file(path: Path) -> Path:
    """The model file of a run folder, or the path itself, which is a file."""
    of_run = (path / "job.yaml").is_file()
    if not of_run and not path.is_file():
        raise DataError(f"{path}: is neither a run folder with a job.yaml, such as runs/NAME, nor a model file")
    file = path / "model.safetensors" if of_run else path
    if not file.exists():
        raise DataError(f"{path}: {NO_MODEL}")
    return file


def _in_run(file: Path) -> bool:
    """Whether a model file is that of the run folder that it is in."""
    return file.name == "model.safetensors" and file.with_name("job.yaml").is_file()


def _job_of(file: Path) -> Job:
    """The job of a model file: of the run folder that it is in, whose paths are absolute, or its own.

    Raises
    ------
    DataError, JobError
        See `ModelMetadata`.
    """
    if _in_run(file):
        return load_job(file.with_name("job.yaml"), {})
    return ModelMetadata.read(file).load_job()


def _form_of_data(job: Job, file: Path) -> SampleForm:
    """The form of the samples of the job's data, for a model file that does not have it.

    Raises
    ------
    DataError
        The data cannot be read, or there is none.
    """
    missing = f"{file} does not hold the form of its samples (an earlier version wrote it, or the job has no data)"
    try:
        form = load(job.data, job.folder).form
    except DataError as error:
        raise DataError(f"{error}; {missing}, so that the data is needed") from error
    if form is None:
        raise DataError(f"{missing}, and job {job.name} has no data")
    return form
