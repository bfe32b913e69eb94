"""Fields of tables: columns, and how their inputs become numbers."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .document.section import LARGEST, Count, Positive, Section, Whole, Words, refusal

Column = Annotated[
    Annotated[str, Field(min_length=1)]
    | Annotated[int, Field(ge=1, le=LARGEST)]
    | Annotated[int, Field(ge=-LARGEST, le=-1)],
    Words("the name of a column, or its number from 1, or from -1 for the last backwards"),
]
Columns = Annotated[
    tuple[Column, ...],
    Field(strict=False),
    Words("a column, or a list of columns: names, or numbers from 1, or from -1 for the last backwards"),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str | int) else value,
        json_schema_input_type=Column | tuple[Column, ...],
    ),
]
Names = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(strict=False),
    Words("the name of a column, or a list of names"),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | tuple[str, ...]
    ),
]

_OWN_DATA = ("file", "files", "folder")
"""How fields end that name a set's own data."""


class SplitFields(Section):
    """Samples of which `validation` and `test` are kept for these sets, where no other fields name their data."""

    @model_validator(mode="after")
    def _something_left(self) -> Self:
        kept = {name: getattr(self, name) for name in ("validation", "test")}
        own = {name for name in kept for end in _OWN_DATA if getattr(self, f"{name}_{end}", None) is not None}
        shares = sum(part for name, part in kept.items() if isinstance(part, float) and name not in own)
        if shares >= 1:
            raise refusal("test", f"with validation must leave samples to train on, but both are {shares:g} of all")
        return self


class TableFields(Section):
    """Columns of a table, and how its inputs become numbers, by what the training rows say, which the model keeps."""

    kind: Literal["classes", "regression"] = Field(description="Targets: one column of classes, or numbers")
    target: Columns = Field(description="Column of the classes, or columns of the numbers")
    ignore: Columns = Field(default=(), description="Columns that are neither inputs nor targets")
    scale: Positive = Field(default=1.0, description="What inputs are multiplied by, without unit")
    missing: Literal["refuse", "mean", "zero"] = Field(
        default="refuse", description="What stands for a missing number or date: none, the column's mean, or 0"
    )
    missing_values: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description="Values that mean a missing one, beside the empty one: ['?', '-999']"
    )
    categories: Columns = Field(default=(), description="Columns of texts, each value of which becomes a 0-or-1 input")
    hashed: Columns = Field(default=(), description="The like with many values, which share data.buckets inputs")
    dates: Columns = Field(default=(), description="Columns of ISO dates, which become days since 1970")
    vocabulary: Count = Field(default=1000, description="Most values of a column in categories")
    buckets: Annotated[Whole, Field(ge=2, le=10**6)] = Field(default=256, description="Inputs of a column in hashed")
    standardize: bool = Field(
        default=False, description="Whether numbers and dates are shifted and scaled to mean 0 and deviation 1"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.standardize and self.scale != 1.0:
            raise refusal("scale", f"must be 1 where standardize is true, not {self.scale:g}")
        if self.kind == "classes" and len(self.target) != 1:
            raise refusal("target", f"must be one column where kind is classes, not {len(self.target)}")
        return self

    @property
    def encoded(self) -> bool:
        """Whether anything but plain numbers is read, or they are changed."""
        read = self.categories or self.hashed or self.dates or self.missing_values
        return bool(read or self.standardize or self.fills)

    @property
    def fills(self) -> bool:
        """Whether inputs may be missing."""
        return self.missing != "refuse"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that mean a missing value."""
        return self.missing_values
