"""The `schedule` section: the learning rate by samples seen."""

import math
from typing import Annotated, Literal

from pydantic import Field

from .document.section import Count, Decay, Positive, Section, Share


class WarmUp(Section):
    """What the schedule says is multiplied by a factor that rises in a straight line to 1 (Goyal et al. 2017)."""

    samples: Count = Field(description="Samples after which the factor is 1")
    start_factor: Share = Field(default=0.1, description="The factor at the start, without unit")


class Scale(Section):
    """Batch and rate scaled together: the rule's rate is one for a batch of so many samples, and grows with the batch.

    In proportion (linear: Goyal et al. 2017, section 2.1), or with its root (sqrt: Krizhevsky 2014, arXiv:1404.5997).
    FireCaffe found its rates by sweeps: 4 times the rate for 4 times the batch with one network, 8 times the rate for
    32 times the batch with another, which is neither (Iandola et al. 2016, sections 7.2 and 7.3).
    """

    reference_batch: Count = Field(description="Samples of the batch that the rate is for")
    by: Literal["linear", "sqrt"] = Field(
        default="linear", description="What multiplies the rate: the ratio of the batches, or its root"
    )

    def factor(self, batch: int) -> float:
        """What multiplies the rate where an update's gradient is the mean of so many samples."""
        ratio = batch / self.reference_batch
        return ratio if self.by == "linear" else math.sqrt(ratio)


Rising = Annotated[
    WarmUp | None, Field(description="A lower rate at first, under any schedule: samples, start_factor; null for none")
]
Scaled = Annotated[
    Scale | None, Field(description="Batch and rate scaled together: reference_batch, by; null: the rate as it stands")
]


class ConstantSchedule(Section):
    """The rule's rate, all the way."""

    kind: Literal["constant"] = Field(description="Which schedule this is")
    warm_up: Rising = None
    scale: Scaled = None


class StepSchedule(Section):
    """rate * factor^(samples // every)."""

    kind: Literal["step"] = Field(description="Which schedule this is")
    every: Count = Field(description="Samples from one step to the next")
    factor: Positive = Field(description="What the rate is multiplied by at each step, without unit")
    warm_up: Rising = None
    scale: Scaled = None


class PolySchedule(Section):
    """rate * (1 - samples / total)^power (FireCaffe: power 0.5 for GoogLeNet)."""

    kind: Literal["poly"] = Field(description="Which schedule this is")
    power: Positive = Field(description="Exponent, without unit; 1 falls in a straight line")
    total: Count | None = Field(
        default=None, description="Samples at which the rate reaches 0; null for those of the limits"
    )
    warm_up: Rising = None
    scale: Scaled = None


class CosineSchedule(Section):
    """rate * (end + (1 - end) * (1 + cos(pi * samples / total)) / 2) (Loshchilov and Hutter 2017, equation 5)."""

    kind: Literal["cosine"] = Field(description="Which schedule this is")
    end: Decay = Field(default=0.0, description="Share of the rate that is left at the end, without unit")
    total: Count | None = Field(
        default=None, description="Samples at which the rate stops falling; null for those of the limits"
    )
    warm_up: Rising = None
    scale: Scaled = None


Schedule = Annotated[ConstantSchedule | StepSchedule | PolySchedule | CosineSchedule, Field(discriminator="kind")]
