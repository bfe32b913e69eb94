"""Layers whose rows lie in tables of the job, as a job file writes them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dbelief.job.document.section import Name, Section, Whole
from dbelief.job.table_fields import Names


class ReadsBags(Section):
    """What layers that read tables have in common."""

    columns: Names = Field(default=(), description="Columns of the samples' keys that it reads; []: all")
    join: Literal["append", "add"] = Field(
        default="append", description="Whether its outputs come behind those of the layer before, or are added to them"
    )


class EmbeddingBag(ReadsBags):
    """Sums or means of a table's rows over each column's keys; as the first layer, or behind others."""

    short: ClassVar[str] = "table"

    table: Name = Field(description="Table of the rows")
    mode: Literal["sum", "mean"] = Field(default="sum", description="What is made of a column's rows in a sample")

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return (self.table,)


class Fm(ReadsBags):
    """A factorisation machine: a bias, a linear term, and products of all pairs of keys; one output."""

    factors: Name = Field(description="Table of the factors, whose products are taken")
    linear: Name = Field(description="Table of the linear term, of width 1")

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return self.factors, self.linear


class Cross(Section):
    """Cross layers: x0 <w, x> + b + x, one after another, with the layer's inputs as x0."""

    short: ClassVar[str] = "layers"

    layers: Annotated[Whole, Field(ge=1, le=1000)] = Field(description="Cross layers, one after another; a number")
