"""The `data` section: where samples come from."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .kinds import Count, Natural, NonNegative, PathText, Portion, Section, Whole, refusal


class DigitsData(Section):
    """The 1,797 handwritten digits that come with dbelief, split 1,257 / 180 / 360."""

    source: Literal["digits"] = Field(description="Which source this is")


class IdxData(Section):
    """The four MNIST files in IDX format."""

    source: Literal["idx"] = Field(description="Which source this is")
    folder: PathText = Field(description="Folder of train-images-idx3-ubyte and the three others, plain or .gz")
    validation: Natural = Field(
        default=5000, description="Last images of the training file, kept for validation; a number of samples"
    )


class NpzData(Section):
    """Arrays in a NumPy .npz file; values are used as stored."""

    source: Literal["npz"] = Field(description="Which source this is")
    file: PathText = Field(
        description="File with inputs and targets, or train_inputs, train_targets, validation_inputs, ..."
    )
    validation: Portion = Field(
        default=0.1, description="Kept for validation where the file has no such set: share, or samples"
    )
    test: Portion = Field(
        default=0.1, description="Kept for the test where the file has no such set: share of all, or samples"
    )

    @model_validator(mode="after")
    def _something_left(self) -> Self:
        shares = sum(part for part in (self.validation, self.test) if isinstance(part, float))
        if shares >= 1:
            raise refusal("test", f"with validation must leave samples to train on, but both are {shares:g} of all")
        return self


class LibsvmData(Section):
    """Text in LIBSVM format, read into dense rows."""

    source: Literal["libsvm"] = Field(description="Which source this is")
    train: PathText = Field(description="File of the training rows")
    test: PathText | None = Field(default=None, description="File of the test rows; null for none")
    features: Count | None = Field(
        default=None, description="Numbers per row; null for the greatest index in the files"
    )
    validation: Portion = Field(
        default=0.1, description="Training rows kept for validation: share of all, or number of samples"
    )


class SyntheticData(Section):
    """Samples drawn from a seed: Gaussian clusters, or a noisy linear map; split 80 / 10 / 10 percent."""

    source: Literal["synthetic"] = Field(description="Which source this is")
    kind: Literal["classes", "regression"] = Field(description="Clusters with labels, or a linear map")
    samples: Annotated[Whole, Field(ge=10, le=10**9)] = Field(description="Samples of all sets together")
    features: Annotated[Whole, Field(ge=1, le=10**6)] = Field(description="Numbers per sample")
    classes: Annotated[Whole, Field(ge=2, le=10**6)] = Field(default=2, description="Number of clusters")
    noise: NonNegative = Field(
        description="Standard deviation of the noise, where centres and targets have one of about 1"
    )
    seed: Natural = Field(default=0, description="Seed of the draw, a whole number")

    @model_validator(mode="after")
    def _enough_samples(self) -> Self:
        if self.kind == "classes" and self.samples < 10 * self.classes:
            raise refusal("samples", f"must be at least 10 per class, here {10 * self.classes}, not {self.samples}")
        return self


class NoData(Section):
    """No data: a program with a loop of its own brings the gradients."""

    source: Literal["none"] = Field(description="Which source this is")


Data = Annotated[DigitsData | IdxData | NpzData | LibsvmData | SyntheticData | NoData, Field(discriminator="source")]


def lacks_validation(data: Data) -> bool:
    """Whether it is certain, before any file is opened, that there will be no validation data."""
    match data:
        case NoData():
            return True
        case IdxData() | LibsvmData():
            return data.validation == 0
        case _:
            return False
