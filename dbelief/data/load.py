"""Loading of a job's `data` section: into memory, or as sets that are read while they are used."""

from collections.abc import Collection
from pathlib import Path

from dbelief.job import (
    BagsData,
    CsvData,
    Data,
    DigitsData,
    IdxData,
    ImagesData,
    LibsvmData,
    LinesData,
    NoData,
    NpzData,
    ParquetData,
    PythonData,
    ScriptData,
    Streamed,
    SyntheticData,
    TokensData,
)

from .dataset import Dataset
from .digits import load_digits
from .formats.csv import csv_sizes, load_csv
from .formats.idx import idx_sizes, load_idx
from .formats.libsvm import libsvm_sizes, load_libsvm
from .formats.npz import load_npz, npz_sizes
from .samples import SETS
from .streams.formats.images import open_images
from .streams.formats.parquet import open_parquet
from .streams.formats.python_samples import open_python
from .streams.formats.text_lines import open_lines
from .streams.formats.tokens import open_tokens
from .streams.stream_sets import StreamSets
from .streams.unit_order import Units
from .synthetic import load_synthetic, synthetic_sizes


def load(spec: Data, folder: Path, need: Collection[str] = SETS) -> Dataset:
    """Load the data that a job's `data` section specifies.

    The split, the classes and the features do not depend on `need`, nor on the job's seed.

    Parameters
    ----------
    spec : Data
        `job.data`.
    folder : Path
        Base of relative paths: `job.folder`.
    need : collection of "train", "validation", "test"
        Sets to return, at least one; files of other sets are not read where possible.

    Raises
    ------
    DataError
        A file is missing, truncated, or not as the job describes it; one line that names file and cause.
    JobError
        A path names an environment variable that is not set.
    """
    if not need or not set(need) <= set(SETS):
        raise ValueError(f"need is {list(need)}, must be some of {', '.join(SETS)}")
    match spec:
        case DigitsData():
            return load_digits(need)
        case IdxData():
            return load_idx(spec, folder, need)
        case NpzData():
            return load_npz(spec, folder, need)
        case LibsvmData():
            return load_libsvm(spec, folder, need)
        case CsvData():
            return load_csv(spec, folder, need)
        case BagsData() if not spec.streamed:
            from .bags.in_memory import load_bags

            return load_bags(spec, folder, need)
        case SyntheticData():
            return load_synthetic(spec, need)
        case NoData() | ScriptData():
            return Dataset(None, None, None, None, ())
        case _:
            return _opened(spec, folder).dataset(spec, need)


def sizes(spec: Data, folder: Path) -> tuple[int, int, int]:
    """Sample counts that `load` would return for the training, validation and test sets; 0 for a set without data.

    Inputs are not loaded: headers are read, and lines of text counted. So fewer checks are made than by `load`.

    Parameters
    ----------
    spec, folder
        See `load`.

    Raises
    ------
    DataError, JobError
        See `load`.
    """
    match spec:
        case DigitsData():
            data = load_digits(SETS)
            train, validation, test = (len(split or ()) for split in (data.train, data.validation, data.test))
            return train, validation, test
        case IdxData():
            return idx_sizes(spec, folder)
        case NpzData():
            return npz_sizes(spec, folder)
        case LibsvmData():
            return libsvm_sizes(spec, folder)
        case CsvData():
            return csv_sizes(spec, folder)
        case BagsData() if not spec.streamed:
            from .bags.in_memory import bags_sizes

            return bags_sizes(spec, folder)
        case SyntheticData():
            return synthetic_sizes(spec)
        case NoData():
            return 0, 0, 0
        case ScriptData():
            return spec.train, spec.validation, 0
        case _:
            return _opened(spec, folder, prepared=False).sizes()


def sizes_and_units(spec: Data, folder: Path) -> tuple[tuple[int, int, int], Units | None]:
    """What `sizes` returns, and the units in which the training set is read and shuffled.

    None: its samples are in memory, each by itself. The data is opened once.

    Raises
    ------
    DataError, JobError
        See `load`.
    """
    if not isinstance(spec, Streamed) or (isinstance(spec, BagsData) and not spec.streamed):
        return sizes(spec, folder), None
    sets = _opened(spec, folder, prepared=False)
    return sets.sizes(), sets.units(spec)


def _opened(spec: Streamed, folder: Path, prepared: bool = True) -> StreamSets:
    """The sets of a source that is read unit by unit; without `prepared` only their sizes are right."""
    match spec:
        case BagsData():
            from .bags.streamed.open_bags import open_bags

            return open_bags(spec, folder, prepared)
        case ParquetData():
            return open_parquet(spec, folder, prepared)
        case TokensData():
            return open_tokens(spec, folder)
        case LinesData():
            return open_lines(spec, folder)
        case ImagesData():
            return open_images(spec, folder)
        case PythonData():
            return open_python(spec, folder)
