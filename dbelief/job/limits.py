"""The sections on the course of a job: when it ends, and what is evaluated of it meanwhile."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .document.section import Count, NonNegative, Positive, Section, refusal
from .metrics import Metric, name_of


class Limits(Section):
    """When a job ends: at the first of these, or where its method says. An early stop needs validation data."""

    epochs: Positive | None = Field(default=None, description="Passes over the training data")
    samples: Count | None = Field(default=None, description="Training samples, over all replicas")
    wall_s: Positive | None = Field(default=None, description="Seconds by the clock on the wall")
    validation_accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Stop at this share of right answers on validation data, 0 to 1"
    )
    validation_loss: float | None = Field(
        default=None, description="Stop when the mean loss on validation data is this or less, per sample"
    )
    validation_metrics: dict[str, float] = Field(
        default_factory=dict, description="Stop when one of these metrics of evaluate.metrics is that good, by name"
    )
    patience: Count | None = Field(default=None, description="Evaluations without improvement before a stop")

    def early(self) -> list[str]:
        """Names of the limits that need validation data and are set."""
        names = ("validation_accuracy", "validation_loss", "validation_metrics", "patience")
        return [name for name in names if getattr(self, name) not in (None, {})]


class Evaluate(Section):
    """Evaluation on validation data while training."""

    every: Count | None = Field(
        default=None, description="Training samples from one evaluation to the next; null for half an epoch"
    )
    keep: Literal["best", "last"] | None = Field(
        default=None,
        description="Which parameters are the result: those of the best evaluation, or the last; "
        "null for the best where limits stop early, else the last",
    )
    metrics: Annotated[tuple[Metric, ...], Field(strict=False)] = Field(
        default=(), description="What is measured beside loss and accuracy"
    )
    best_by: str | None = Field(
        default=None,
        description="The metric that decides which evaluation is the best; null for accuracy, else loss",
    )

    @model_validator(mode="after")
    def _each_metric_once(self) -> Self:
        names = [name_of(metric) for metric in self.metrics]
        for name in names:
            if names.count(name) > 1 or name in ("loss", "accuracy"):
                why = "is listed twice" if names.count(name) > 1 else "is always measured"
                raise refusal("metrics", f"must have each metric once, and {name} {why}")
        if self.best_by is not None and self.best_by not in names:
            raise refusal("best_by", f"must be one of metrics ({', '.join(names) or 'none'}), not {self.best_by!r}")
        return self


class Divergence(Section):
    """A loss above factor times its start, for so long, stops the job."""

    factor: Annotated[float, Field(gt=1)] = Field(default=10.0, description="Multiple of the starting loss")
    seconds: NonNegative = Field(default=10.0, description="How long the loss may stay above it, in seconds")
