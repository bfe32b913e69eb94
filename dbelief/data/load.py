"""From the `data` section of a job to samples in memory."""

from collections.abc import Collection
from pathlib import Path

from dbelief.job import CsvData, Data, DigitsData, IdxData, LibsvmData, NoData, NpzData, SyntheticData

from .csv import load_csv
from .dataset import Dataset
from .digits import load_digits
from .idx import load_idx
from .libsvm import load_libsvm
from .npz import SETS, load_npz
from .synthetic import load_synthetic


def load(spec: Data, folder: Path, need: Collection[str] = SETS) -> Dataset:
    """Load what a job's `data` section names.

    The split, the classes and the features are the same whatever is needed, and whatever the job's seed.

    Parameters
    ----------
    spec : Data
        `job.data`.
    folder : Path
        Where relative paths start: `job.folder`.
    need : collection of "train", "validation", "test"
        Sets to hand over, at least one; files of others are not read where that can be.

    Raises
    ------
    DataError
        A file is missing, torn, or not what the job says; one line that names file and cause.
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
        case SyntheticData():
            return load_synthetic(spec, need)
        case NoData():
            return Dataset(None, None, None, None, ())
