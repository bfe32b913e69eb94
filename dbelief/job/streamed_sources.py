"""The `data` section: samples that are read unit by unit, while they are used."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from .document.section import (
    Count,
    PathOrUrl,
    Portion,
    Positive,
    PythonName,
    Section,
    Whole,
    Words,
    not_empty,
    refusal,
)
from .table_fields import Names, SplitFields, TableFields

Paths = Annotated[
    tuple[PathOrUrl, ...],
    Field(strict=False),
    AfterValidator(not_empty),
    Words("a path, or a list of paths: of files or folders, patterns such as part-*.parquet, or URLs"),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | tuple[str, ...]
    ),
]


class StreamFields(Section):
    """How samples that are read unit by unit are shuffled, and kept in memory."""

    window: Count = Field(default=1, description="Units whose samples are shuffled together, and in memory together")
    memory: Count = Field(default=256, description="Most MiB of samples in memory, for training and for an evaluation")
    streamed: bool = Field(default=True, description="Whether units are read when they are used; false: all at once")


class FilesFields(SplitFields, StreamFields):
    """Files of the three sets."""

    files: Paths = Field(
        description="Files of all samples, or of those that the other files do not hold: paths, folders, patterns or "
        "URLs",
        json_schema_extra={"minItems": 1},
    )
    validation_files: Paths | None = Field(default=None, description="Files for validation; null for none")
    test_files: Paths | None = Field(default=None, description="Files for the test; null for none")
    validation: Portion = Field(
        default=0.1, description="Units kept for validation where that has no files: share of all, or number of units"
    )
    test: Portion = Field(
        default=0.1, description="Units kept for the test where that has no files: share of all, or number of units"
    )


class ParquetData(TableFields, FilesFields):
    """Parquet files, of which workers read the row groups that they lease; nulls and NaN are missing values."""

    source: Literal["parquet"] = Field(description="Which source this is")
    target: Annotated[Names, AfterValidator(not_empty)] = Field(
        description="Column of the classes, or columns of the numbers", json_schema_extra={"minItems": 1}
    )
    ignore: Names = Field(default=(), description="Columns that are neither inputs nor targets")
    categories: Names = Field(default=(), description="Columns of which each value becomes a 0-or-1 input")
    hashed: Names = Field(default=(), description="The like with many values, which share data.buckets inputs")
    dates: Names = Field(default=(), description="Columns of texts that are ISO dates; others say so by their type")


class TokensData(FilesFields):
    """Sequences of tokens in memory-mapped files; the target is the token that follows.

    A file is .npy of one axis, or, whatever else it is called, bare numbers of `dtype`.
    """

    source: Literal["tokens"] = Field(description="Which source this is")
    vocabulary: Annotated[Whole, Field(ge=2, le=2**24)] = Field(description="Number of tokens, which are 0, 1, ...")
    context: Count = Field(description="Tokens of a sample's inputs")
    stride: Count | None = Field(default=None, description="Tokens from a sample to the next; null: data.context")
    dtype: Literal["uint8", "uint16", "int32", "uint32"] = Field(
        default="uint16", description="Type of the numbers in files that are not .npy; little-endian"
    )
    unit: Count | None = Field(
        default=None,
        description="Samples of a unit, leased and shuffled as a whole; null: 4096, or a 40th of all",
    )


class LinesData(FilesFields):
    """Lines of UTF-8 text, each the class, the delimiter and the text; inputs are its bytes, 0 behind its end."""

    source: Literal["lines"] = Field(description="Which source this is")
    delimiter: Annotated[str, Field(min_length=1, max_length=8), Words("1 to 8 characters")] = Field(
        default="\t", description="What stands between the class and the text"
    )
    length: Count = Field(description="Bytes of a sample's inputs; longer texts are cut")
    unit: Count | None = Field(
        default=None,
        description="Lines of a unit, leased and shuffled as a whole; null: 4096, or a 40th of all",
    )


class BagsData(FilesFields):
    """Samples with bags of keys, of which layers read rows of tables."""

    source: Literal["bags"] = Field(description="Which source this is")
    format: Literal["libsvm", "libffm", "vw", "csv", "parquet"] = Field(
        description="Format of the files; vw: Vowpal Wabbit's text"
    )
    unit: Count | None = Field(
        default=None,
        description="Rows of a unit, leased and shuffled as a whole; null: 4096, or a 40th of all; of parquet a unit "
        "is a row group, and in memory a sample",
    )
    streamed: bool = Field(
        default=False, description="Whether units are read when they are used; false: all at once, each sample a unit"
    )
    columns: Names = Field(
        default=(),
        description="Namespaces of vw, or numbers of libffm's fields, each of which is a column; []: all keys are in "
        "one column, features, as those of libsvm",
    )
    label: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Column of the classes, of csv and parquet"
    )
    ids: Names = Field(default=(), description="Columns of whole numbers, which are keys, of csv and parquet")
    texts: Names = Field(default=(), description="Columns of texts, whose hashes are keys, of csv and parquet")

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        named = self.format in ("csv", "parquet")
        if named and (self.label is None or not (*self.ids, *self.texts)):
            at = "label" if self.label is None else "ids"
            raise refusal(at, f"must be given with {self.format}: label, and ids or texts")
        if not named and (self.label is not None or self.ids or self.texts):
            raise refusal("format", f"must be csv or parquet where label, ids or texts are given, not {self.format}")
        if self.columns and self.format not in ("vw", "libffm"):
            raise refusal("columns", f"must be [] with {self.format}: it is for vw and libffm")
        names = [*self.columns, *self.ids, *self.texts, *([self.label] if named else [])]
        if twice := [name for place, name in enumerate(names) if name in names[:place]]:
            at = "columns" if self.columns else "ids"
            raise refusal(at, f"must have each column once, and {twice[0]!r} is there twice")
        if self.format == "libffm" and (odd := [name for name in self.columns if not name.isdecimal()]):
            raise refusal("columns", f"must be numbers of fields with libffm, such as '0', not {odd[0]!r}")
        return self

    @model_validator(mode="after")
    def _units_fit(self) -> Self:
        if self.unit is not None and self.format == "parquet":
            raise refusal("unit", "must be null with parquet, whose units are row groups")
        if not self.streamed and (self.unit is not None or self.window > 1):
            raise refusal("streamed", "must be true with unit or window: in memory each sample is a unit")
        return self


class ImagesData(SplitFields, StreamFields):
    """Image files, a folder for each class; pixels are bytes, scaled by 1/255 when a mini-batch is made."""

    source: Literal["images"] = Field(description="Which source this is")
    folder: PathOrUrl = Field(description="Folder with a folder of images for each class, of any depth")
    height: Count = Field(description="Height of a sample in pixels; images of another size are resized")
    width: Count = Field(description="Width of a sample in pixels; images of another size are resized")
    channels: Literal[1, 3] = Field(default=3, description="1: grey; 3: red, green, blue")
    unit: Count | None = Field(
        default=None,
        description="Images of a unit, leased and shuffled as a whole; null: 256, or a 40th of all",
    )
    validation_folder: PathOrUrl | None = Field(default=None, description="Folder for validation; null for none")
    test_folder: PathOrUrl | None = Field(default=None, description="Folder for the test; null for none")
    validation: Portion = Field(
        default=0.1, description="Kept for validation where that has no folder: share of each class, or images"
    )
    test: Portion = Field(
        default=0.1, description="Kept for the test where that has no folder: share of each class, or images"
    )


class PythonData(StreamFields):
    """Samples of a Python object: by index, or in named units."""

    source: Literal["python"] = Field(description="Which source this is")
    train: PythonName = Field(description="file.py:name of the training set: an object, or a function that returns it")
    validation: PythonName | None = Field(default=None, description="The like for validation; null for none")
    test: PythonName | None = Field(default=None, description="The like for the test; null for none")
    classes: Annotated[Whole, Field(ge=2, le=10**6)] | None = Field(
        default=None, description="Number of classes, where targets are labels 0, 1, ...; null: targets are numbers"
    )
    scale: Positive = Field(default=1.0, description="What inputs are multiplied by, without unit")
    unit: Count | None = Field(
        default=None, description="Samples of a unit, where they are found by index; null: 256, or a 40th of all"
    )
