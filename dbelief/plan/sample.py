"""Shape of one sample of a job: from its model, without the data, or from its data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dbelief.data import Dataset, SparseSplit, load
from dbelief.errors import DataError, ModelError
from dbelief.job import AutoencoderModel, BagsData, Job, LayersModel, PythonModel, ScriptModel, StacksModel, ZooModel

_NO_IMAGE = "a job can be planned without its data where its model says what it sees: {} (height, width, channels)"


@dataclass(frozen=True)
class Sample:
    """Shapes of a sample's inputs and outputs.

    Attributes
    ----------
    features
        Shape of one sample.
    outputs
        Number of model outputs: the classes, or a target's width; None where only the data determines it.
    data
        The loaded data; None where the model specifies its image.
    """

    features: tuple[int, ...]
    outputs: int | None
    data: Dataset | None

    @property
    def data_bytes(self) -> int:
        """Bytes of all sets in memory; 0 where they were not loaded."""
        splits = [] if self.data is None else [self.data.train, self.data.validation, self.data.test]
        return sum(split.nbytes for split in splits if split is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the inputs; empty where they have none."""
        return (self.data.columns if self.data is not None else None) or ()

    @property
    def mean_numbers(self) -> float | None:
        """Mean count of the numbers of a training sample in a sparse set; None where samples are arrays, or unknown."""
        train = self.data.train if self.data is not None else None
        return train.mean_numbers if isinstance(train, SparseSplit) else None

    @property
    def numbers(self) -> int | None:
        """The same, rounded up."""
        return None if self.mean_numbers is None else math.ceil(self.mean_numbers)

    def batch_bytes(self, size: int, sparse: bool) -> int:
        """Bytes of the inputs of a mini-batch, for a model that reads sparse rows, or only arrays."""
        train = self.data.train if self.data is not None else None
        if train is None:
            return 4 * size * math.prod(self.features)
        return (train if sparse else train.dense()).batch_bytes(size)


def sample_of(job: Job) -> Sample:
    """The sample that the job's model reads.

    Raises
    ------
    ModelError
        Only the model's own code determines its sizes, or there is no data to take sizes from.
    DataError
        The model specifies no image, and the data cannot be loaded; the message names the alternative.
    """
    if isinstance(job.model, PythonModel):
        raise ModelError(
            f"model {job.model.python}: the sizes of a Python model are known once it is built: see dbelief job check"
        )
    if isinstance(job.model, ScriptModel):
        raise ModelError("the sizes of a script's module are known once it has joined the job")
    image, field = _image(job.model)
    if image is not None:
        return Sample(image, None, None)
    try:
        data = load(job.data, job.folder)
    except DataError as error:
        if isinstance(job.data, BagsData):
            raise
        raise DataError(f"{error}; {_NO_IMAGE.format(field)}") from error
    if data.train is None:
        raise ModelError("this model takes its sizes from data, and data.source is none")
    return Sample(data.features, data.outputs, data)


def _image(model: LayersModel | ZooModel | AutoencoderModel | StacksModel) -> tuple[tuple[int, ...] | None, str]:
    """The image shape that the model specifies, and the field that specifies it."""
    if isinstance(model, AutoencoderModel):
        return model.autoencoder.image, "model.autoencoder.image"
    if isinstance(model, StacksModel):
        return model.image, "model.image"
    first = model.layers[0]
    if first.image is None:
        return None, "a first layer image"
    return (first.image.height * first.image.width * first.image.channels,), ""
