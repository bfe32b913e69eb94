"""The `schedule` section: the learning rate by samples seen."""

from typing import Annotated, Literal

from pydantic import Field

from .kinds import Count, Positive, Section


class ConstantSchedule(Section):
    """The rule's rate, all the way."""

    kind: Literal["constant"] = Field(description="Which schedule this is")


class StepSchedule(Section):
    """rate * factor^(samples // every)."""

    kind: Literal["step"] = Field(description="Which schedule this is")
    every: Count = Field(description="Samples from one step to the next")
    factor: Positive = Field(description="What the rate is multiplied by at each step, without unit")


class PolySchedule(Section):
    """rate * (1 - samples / total)^power (FireCaffe: power 0.5 for GoogLeNet)."""

    kind: Literal["poly"] = Field(description="Which schedule this is")
    power: Positive = Field(description="Exponent, without unit; 1 falls in a straight line")
    total: Count | None = Field(
        default=None, description="Samples at which the rate reaches 0; null for those of the limits"
    )


Schedule = Annotated[ConstantSchedule | StepSchedule | PolySchedule, Field(discriminator="kind")]
