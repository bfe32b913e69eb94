"""The kinds of value that a job file holds, and the base of all its sections."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from dbelief.errors import UserError
from dbelief.url import Url, is_url, parse_url


class Section(BaseModel):
    """A mapping of a job file: unknown fields are refused, values are never bent into another kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class StrategySection(Section):
    """A strategy, and what holds for most of them; the others say otherwise."""

    @property
    def grouped(self) -> bool:
        """Whether workers exchange among themselves, and shards keep what comes of it."""
        return False

    @property
    def turns(self) -> bool:
        """Whether replicas compute one after the other."""
        return False

    @property
    def clock_samples(self) -> int:
        """Samples of a replica from one clock to the next, where replicas wait for each other."""
        batch: int = vars(self)["batch"]
        return batch

    @property
    def locked(self) -> bool:
        """Whether what is done to a segment waits for what is being done to it."""
        return True


@dataclass(frozen=True)
class Words:
    """Says what a field takes, where its type and bounds do not say it well enough."""

    text: str


def refusal(at: str, sentence: str) -> PydanticCustomError:
    """Make the error of a rule that spans fields.

    Parameters
    ----------
    at : str
        The field to name, below the section whose validator raises; may be dotted, or empty.
    sentence : str
        What is wrong and what is allowed.
    """
    return PydanticCustomError("refused", "{sentence}", {"at": at, "sentence": sentence})


def _whole(value: object) -> object:
    # 6e4 is how people write a number of samples; YAML reads it as a float.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def not_empty(value: tuple[object, ...]) -> tuple[object, ...]:
    """Refuse an empty list (Pydantic's own check of length also complains where an item is wrong)."""
    if not value:
        raise refusal("", "must be a list with at least one item")
    return value


T = TypeVar("T")
Several = Annotated[tuple[T, ...], Field(strict=False), AfterValidator(not_empty)]
"""A list with at least one item."""

LARGEST = 10**15
"""Bound of all counts: exact in a float, and far from overflow in 64 bits when two of them are added."""

PythonName = Annotated[str, Field(pattern=r"^[^\x00]+\.py:[A-Za-z_][A-Za-z0-9_]*$"), Words("file.py:name")]
"""An object in a user's Python file."""

PATTERN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1, le=LARGEST)]
Natural = Annotated[Whole, Field(ge=0, le=LARGEST)]
MOST_MEMBERS = 16_384
"""Replicas and clients of a job at a time, at most."""
Members = Annotated[Whole, Field(ge=1, le=MOST_MEMBERS)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Portion = Annotated[
    Annotated[float, Field(ge=0, lt=1)] | Annotated[int, Field(ge=0, le=LARGEST)],
    Words("a share of all samples from 0.0 to below 1.0, or a whole number of samples"),
]
Name = Annotated[
    str,
    Field(pattern=PATTERN_NAME),
    Words("1 to 64 letters, digits, dots, underscores and hyphens, the first a letter or a digit"),
]
_PathLike = Annotated[str, Field(pattern=r"^([^$\x00]|\$[^{\x00]|\$\{[A-Za-z_][A-Za-z0-9_]*\})+\$?$")]
PathText = Annotated[_PathLike, Words("a path, in which ${NAME} stands for an environment variable")]


def _place(value: object) -> Path | Url:
    if not isinstance(value, str | Path):
        raise PydanticCustomError("place", "no place")
    if not is_url(value):
        return Path(value)
    try:
        return parse_url(str(value))
    except UserError as error:
        raise refusal("", str(error)) from None


Place = Annotated[
    Path | Url,
    PlainValidator(_place),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "path"}),
    Words("a path, or a URL"),
]
"""A folder, or a prefix in a store of objects."""


def _path_or_url(text: str) -> str:
    return str(_place(text)) if is_url(text) else text


PathOrUrl = Annotated[
    _PathLike,
    AfterValidator(_path_or_url),
    Words("a path, in which ${NAME} stands for an environment variable, or a URL"),
]
"""A path, in which variables may stand, or a URL."""


def _holds_a_batch(lease: int | None, fields: ValidationInfo) -> int | None:
    batch = fields.data.get("batch", 0)
    if lease is not None and lease < batch:
        raise refusal("", f"must be at least one batch, {batch} samples, or null, not {lease}")
    return lease


Lease = Annotated[
    Count | None,
    Field(description="Samples per lease handed to a replica; null lets the coordinator choose"),
    AfterValidator(_holds_a_batch),
]
"""Length of a lease, below the field `batch` of its section."""
