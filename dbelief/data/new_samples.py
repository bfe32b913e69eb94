"""Reading of new samples for a trained model: files like those of its job's data, without targets or with them."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from dbelief.core.sample_form import SampleForm
from dbelief.errors import DataError
from dbelief.job import CsvData, Data, IdxData, ImagesData, LibsvmData, LinesData, ParquetData

from .files import cause, missing
from .formats.csv import read_inputs
from .formats.idx import read_images
from .formats.libsvm import read_sparse
from .formats.npz import read_arrays
from .streams.formats.images import read_image_files
from .streams.formats.parquet import read_parquet
from .streams.formats.text_lines import read_texts

INPUTS = "inputs"


def read_samples(path: Path, spec: Data, form: SampleForm) -> Any:
    """Read the inputs of samples, as `TrainedModel.predict` takes them.

    Parameters
    ----------
    path
        An .npy or .npz file (there the array `inputs`, or the only one), or a file as of the job's source: CSV, LIBSVM,
        IDX images, these plain or .gz; Parquet; an image, or a folder of images in the order of their paths; or lines
        of text, with a class in front or without.
    spec
        The data section of the model's job.
    form
        Form of its samples.

    Returns
    -------
    array, or SparseRows of LIBSVM files, shape (n, features...)
        Not scaled.

    Raises
    ------
    DataError
        The file cannot be read, or its samples have another form.
    """
    if path.suffix.lower() in (".npy", ".npz"):
        inputs: np.ndarray = _array(path)
    elif isinstance(spec, CsvData):
        inputs = read_inputs(path, spec, form)
    elif isinstance(spec, ParquetData):
        inputs = read_parquet(path, form)
    elif isinstance(spec, LibsvmData):
        return read_sparse(path, form.features[0])
    elif isinstance(spec, IdxData):
        inputs = read_images(path)
    elif isinstance(spec, ImagesData):
        inputs = read_image_files(path, spec)
    elif isinstance(spec, LinesData):
        inputs = read_texts(path, spec, form.names or tuple(map(str, range(form.outputs))))
    else:
        raise DataError(f"{path}: new samples for a job with data of source {spec.source} come as .npy or .npz files")
    if inputs.shape[1:] != form.features:
        wanted = ", ".join(("n", *map(str, form.features)))
        raise DataError(f"{path}: has samples of shape {inputs.shape}, the model takes ({wanted})")
    return inputs


def _array(path: Path) -> np.ndarray:
    """The array of inputs in a NumPy file."""
    try:
        with path.open("rb") as file:
            if path.suffix.lower() == ".npy":
                return _single_array(file, path)
            arrays = read_arrays(file, str(path))
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        raise DataError(f"{path}: {cause(error)}") from None
    if INPUTS in arrays:
        return arrays[INPUTS]
    if len(arrays) != 1:
        raise DataError(f"{path}: has arrays {', '.join(sorted(arrays))}, and none is called {INPUTS!r}")
    return next(iter(arrays.values()))


def _single_array(file: IO[bytes], path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        raise DataError(f"{path}: is no array of numbers, or a damaged one ({cause(error)})") from None
    return array
