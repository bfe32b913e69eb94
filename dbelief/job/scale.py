"""The `scale` section: the number of workers follows the measured throughput."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .document.section import MOST_MEMBERS, Members, Section, Words, refusal


class AutoScale(Section):
    """Bounds of the number of workers, which the coordinator changes by what it measures.

    Written as `auto` alone, all fields have their defaults.
    """

    workers: Literal["auto"] = Field(default="auto", description="The number follows the measured samples per second")
    min: Members = Field(default=1, description="Fewest workers, a number")
    max: Members | None = Field(default=None, description="Most workers, a number; null for twice the job's replicas")
    every_s: Annotated[float, Field(ge=10)] = Field(
        default=60.0, description="Seconds from one change to the next, at least"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise refusal("max", f"must be at least min, {self.min}, not {self.max}")
        return self

    def most(self, replicas: int) -> int:
        """Most workers of a job with so many replicas."""
        return min(MOST_MEMBERS, 2 * replicas) if self.max is None else self.max

    def misfit(self, replicas: int, batch: bool, pinned: bool, elsewhere: bool) -> tuple[str, str] | None:
        """Field of a job that does not fit these bounds, and the reason; None where all do.

        Parameters
        ----------
        batch, pinned, elsewhere
            Whether the job has a batch method; has `pin_cores`; has its workers scaled by Kubernetes.
        """
        if batch:
            return "scale", "must be null with sandblaster, which gives idle workers backups"
        if pinned:
            return "scale", "must be null with pin_cores: each replica keeps to its own cores"
        if elsewhere:
            return "scale", "must be null with kubernetes.scale: both would set the number of workers"
        most = self.most(replicas)
        if not self.min <= replicas <= most:
            return "replicas", f"must be {self.min} to {most}, the bounds of scale, not {replicas}"
        return None


def _written_as_auto(value: object) -> object:
    """`auto` in place of a mapping is a mapping without fields."""
    return {} if value == "auto" else value


Scaling = Annotated[
    AutoScale | None,
    BeforeValidator(_written_as_auto, json_schema_input_type=Literal["auto"] | AutoScale | None),
    Words("auto, a mapping with workers, min, max, every_s, or null"),
]
