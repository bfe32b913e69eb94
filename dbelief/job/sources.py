"""The `data` section: where samples come from.

Those that are read while they are used are in `streamed_sources.py`.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .document.section import (
    Count,
    Natural,
    NonNegative,
    PathOrUrl,
    Portion,
    Section,
    Whole,
    Words,
    not_empty,
    refusal,
)
from .streamed_sources import BagsData, ImagesData, LinesData, ParquetData, PythonData, TokensData
from .table_fields import Columns, SplitFields, TableFields


class DigitsData(Section):
    """The 1,797 handwritten digits that come with dbelief, split 1,257 / 180 / 360."""

    source: Literal["digits"] = Field(description="Which source this is")


class IdxData(Section):
    """The four MNIST files in IDX format."""

    source: Literal["idx"] = Field(description="Which source this is")
    folder: PathOrUrl = Field(description="Folder of train-images-idx3-ubyte and the three others, plain or .gz")
    validation: Natural = Field(
        default=5000, description="Last images of the training file, kept for validation; a number of samples"
    )


class NpzData(SplitFields):
    """Arrays in a NumPy .npz file; values are used as stored."""

    source: Literal["npz"] = Field(description="Which source this is")
    file: PathOrUrl = Field(
        description="File with inputs and targets, or train_inputs, train_targets, validation_inputs, ...; "
        "with groups, or train_groups, ..., samples of one number belong together"
    )
    validation: Portion = Field(
        default=0.1, description="Kept for validation where the file has no such set: share, or samples or groups"
    )
    test: Portion = Field(
        default=0.1, description="Kept for the test where the file has no such set: share of all, or samples or groups"
    )


class LibsvmData(Section):
    """Text in LIBSVM format; rows stay sparse."""

    source: Literal["libsvm"] = Field(description="Which source this is")
    train: PathOrUrl = Field(description="File of the training rows")
    test: PathOrUrl | None = Field(default=None, description="File of the test rows; null for none")
    features: Count | None = Field(
        default=None, description="Numbers per row; null for the greatest index in the files"
    )
    zero_based: Literal["auto"] | bool = Field(
        default="auto", description="Whether indices count from 0, not from 1; auto: from 0 where a file has that index"
    )
    validation: Portion = Field(
        default=0.1, description="Training rows kept for validation: share of all, or number of samples"
    )


MISSING_WORDS = (
    *("NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NULL", "null", "None"),
    *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN", "NaT"),
)
"""What pandas reads as missing, or writes for a missing date, beside an empty field."""

_DELIMITERS = Words("one of a comma, a semicolon, a vertical bar and a tab")


class CsvData(SplitFields, TableFields):
    """Separated text, a sample a row: inputs, and targets that are numbers or name classes."""

    source: Literal["csv"] = Field(description="Which source this is")
    file: PathOrUrl = Field(description="File of all rows, or of those that the other files do not hold")
    target: Annotated[Columns, AfterValidator(not_empty)] = Field(
        description="Column of the classes, or columns of the numbers: names, or numbers from 1; -1 is the last",
        json_schema_extra={"minItems": 1},
    )
    header: bool = Field(default=True, description="Whether the first row names the columns")
    delimiter: Annotated[Literal[",", ";", "|", "\t"], _DELIMITERS] = Field(
        default=",", description="What stands between two fields"
    )
    missing_words: bool = Field(
        default=True, description="Whether NA, N/A, NULL, None, nan and the like mean a missing value, as for pandas"
    )
    validation_file: PathOrUrl | None = Field(default=None, description="File of the validation rows; null for none")
    test_file: PathOrUrl | None = Field(default=None, description="File of the test rows; null for none")
    validation: Portion = Field(
        default=0.1, description="Kept for validation where that has no file: share of all, or samples"
    )
    test: Portion = Field(default=0.1, description="Kept for the test where that has no file: share of all, or samples")

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that mean a missing value."""
        return (*self.missing_values, *MISSING_WORDS) if self.missing_words else self.missing_values


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


class ScriptData(Section):
    """Data that the script loads: a map-style dataset, of which the job leases ranges."""

    source: Literal["script"] = Field(description="Which source this is")
    train: Count = Field(description="Samples of the script's training set, its len(); a number")
    validation: Natural = Field(
        default=0, description="Samples of the set that sync.evaluate is called with; 0: the script evaluates nothing"
    )


Streamed = BagsData | ParquetData | TokensData | LinesData | ImagesData | PythonData
"""Sources that are read unit by unit; bags where the job says so."""
Data = Annotated[
    DigitsData | IdxData | NpzData | LibsvmData | CsvData | SyntheticData | NoData | ScriptData | Streamed,
    Field(discriminator="source"),
]


def lacks_validation(data: Data) -> bool:
    """Whether it is certain, before any file is opened, that there will be no validation data."""
    match data:
        case NoData():
            return True
        case IdxData() | LibsvmData() | ScriptData():
            return data.validation == 0
        case CsvData():
            return data.validation == 0 and data.validation_file is None
        case ParquetData() | TokensData() | LinesData() | BagsData():
            return data.validation == 0 and data.validation_files is None
        case ImagesData():
            return data.validation == 0 and data.validation_folder is None
        case PythonData():
            return data.validation is None
        case _:
            return False
