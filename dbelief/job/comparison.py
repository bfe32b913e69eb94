"""A comparison file: strategies on the same model, data and seeds."""

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from .document.section import (
    PATTERN_NAME,
    Count,
    Members,
    Name,
    Natural,
    NonNegative,
    PathText,
    Positive,
    Section,
    Several,
    T,
    Words,
    refusal,
)

OWN = ("name", "seed", "output", "evaluate")
"""Fields of a job that the comparison sets itself."""

Fields = Annotated[dict[str, Any], Words("a mapping of a job's fields")]


def _no_repetition(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise refusal("", "names one twice")
    return values


Distinct = Annotated[Several[T], AfterValidator(_no_repetition)]


def _labels(strategies: dict[str, Any]) -> dict[str, Any]:
    if not strategies:
        raise refusal("", "must name at least one")
    for label in strategies:
        if not re.match(PATTERN_NAME, label) or len(label) > 32:
            raise refusal("", f"{label[:40]!r} must be 1 to 32 letters, digits, dots, underscores and hyphens")
    return strategies


class Every(Section):
    """When the parameters are copied: after so many samples, or so many seconds."""

    samples: Count | None = Field(default=None, description="Samples from one copy of the parameters to the next")
    seconds: Positive | None = Field(default=None, description="Seconds from one copy of the parameters to the next")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.samples is None) == (self.seconds is None):
            raise refusal("", "must give one of samples and seconds")
        return self


class Comparison(Section):
    """Which jobs are run, and what is measured of them."""

    name: Name = Field(description="Name of the comparison, and of its folder")
    base: Annotated[PathText | dict[str, Any], Words("a mapping of a job's fields, or the path of a job file")] = Field(
        description="What all jobs have in common; its name, seed, output and evaluate are the comparison's"
    )
    strategies: Annotated[
        dict[str, Fields], AfterValidator(_labels), Words("a mapping of labels to fields of a job")
    ] = Field(description="By label: fields that replace those of the base, each as a whole")
    warm_start: Fields | None = Field(
        default=None,
        description="Fields that replace those of the base, of a run whose result all strategies begin with; one for "
        "each seed, whose time and samples do not count; null for none",
    )
    replicas: Distinct[Members] | None = Field(
        default=None,
        description="Each strategy that names no replicas of its own is run with so many of them in turn; "
        "null for as many as the base has",
    )
    seeds: Distinct[Natural] = Field(default=(0, 1, 2), description="Each strategy is run with each of them")
    targets: Distinct[Annotated[float, Field(gt=0, lt=1)]] = Field(
        description="Test accuracies that are to be reached, 0 to 1"
    )
    every: Every = Field(description="When the parameters are copied, to be evaluated after the run")
    compute_wait_s: Distinct[NonNegative] = Field(
        default=(0.0,),
        description="Everything is run with each of these waits added to computing a mini-batch (or portion), in "
        "seconds, as if every replica had a machine of its own",
    )

    @model_validator(mode="after")
    def _keeps_its_own(self) -> Self:
        own = OWN if self.warm_start is None else (*OWN, "start_from")
        sections = {f"strategies.{label}": fields for label, fields in self.strategies.items()}
        for where, fields in [*sections.items(), ("warm_start", self.warm_start or {})]:
            for name in own:
                if name in fields:
                    raise refusal(f"{where}.{name}", "is the comparison's own, and cannot be given here")
        return self
