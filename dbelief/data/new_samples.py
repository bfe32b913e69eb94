"""Reading of new samples for a trained model: files like those of its job's data, without targets or with them."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from dbelief.core.sample_form import SampleForm
from dbelief.errors import DataError
from dbelief.job import BagsData, CsvData, Data, IdxData, ImagesData, LibsvmData, LinesData, ParquetData
from dbelief.url import Url

from .files.data_file import DataFile, file_at
from .files.errors import cause
from .formats.csv import read_inputs
from .formats.idx import read_images
from .formats.libsvm import read_sparse
from .formats.npz import read_arrays
from .streams.formats.images import read_image_files
from .streams.formats.parquet import read_parquet
from .streams.formats.text_lines import read_texts
from .tables.table_encoder import TableEncoder

INPUTS = "inputs"


def read_samples(where: Path | Url, spec: Data, form: SampleForm) -> Any:
    """Read the inputs of samples, as `TrainedModel.predict` takes them.

    Parameters
    ----------
    where
        Path or URL of an .npy or .npz file (there the array `inputs`, or the only one), or a file as of the job's
        source: CSV, LIBSVM, IDX images, these plain or .gz; Parquet; an image, or a folder of images in the order of
        their paths; lines of text, with a class in front or without; of bags of keys a file of their format, with
        labels or without.
    spec
        The data section of the model's job.
    form
        Form of its samples.

    Returns
    -------
    array, or SparseRows of LIBSVM files, shape (n, features...); or SparseBatch
        Not scaled; of a table with an encoder, encoded. A SparseBatch is of bags of keys; its labels mean nothing.

    Raises
    ------
    DataError
        The file cannot be read, or its samples have another form.
    """
    arrays = where.name.lower().endswith((".npy", ".npz"))
    if isinstance(spec, ImagesData) and not arrays:
        return _checked(read_image_files(where, spec), where, form)
    file = file_at(where)
    if isinstance(spec, BagsData):
        from .bags.in_memory import read_bags

        return read_bags(file, spec)
    if arrays:
        inputs: np.ndarray = _array(file)
        if form.encoder is not None:
            inputs = TableEncoder.restore(form.encoder).encode_rows(np.atleast_2d(inputs), str(where))
    elif isinstance(spec, CsvData):
        inputs = read_inputs(file, spec, form)
    elif isinstance(spec, ParquetData):
        inputs = read_parquet(file, form)
    elif isinstance(spec, LibsvmData):
        return read_sparse(file, form.features[0], form.zero_based)
    elif isinstance(spec, IdxData):
        inputs = read_images(file)
    elif isinstance(spec, LinesData):
        inputs = read_texts(file, spec, form.names or tuple(map(str, range(form.outputs))))
    else:
        raise DataError(f"{where}: new samples for a job with data of source {spec.source} come as .npy or .npz files")
    return _checked(inputs, where, form)


def _checked(inputs: np.ndarray, where: Path | Url, form: SampleForm) -> np.ndarray:
    if inputs.shape[1:] != form.features:
        wanted = ", ".join(("n", *map(str, form.features)))
        raise DataError(f"{where}: has samples of shape {inputs.shape}, the model takes ({wanted})")
    return inputs


def _array(file: DataFile) -> np.ndarray:
    """The array of inputs in a NumPy file."""
    with file.open_whole() as opened:
        try:
            if file.suffix == ".npy":
                return _single_array(opened, file)
            arrays = read_arrays(opened, str(file))
        except OSError as error:
            raise DataError(f"{file}: {cause(error)}") from None
    if INPUTS in arrays:
        return arrays[INPUTS]
    if len(arrays) != 1:
        raise DataError(f"{file}: has arrays {', '.join(sorted(arrays))}, and none is called {INPUTS!r}")
    return next(iter(arrays.values()))


def _single_array(opened: IO[bytes], file: DataFile) -> np.ndarray:
    try:
        array: np.ndarray = np.lib.format.read_array(opened, allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        if "Object arrays" in str(error):
            raise DataError(f"{file}: holds Python objects: save it as numbers, .astype('float32')") from None
        raise DataError(f"{file}: is no array of numbers, or a damaged one ({cause(error)})") from None
    return array
