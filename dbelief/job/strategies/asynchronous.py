"""The `strategy` section of asynchronous SGD: Downpour with nothing to choose."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dbelief.job.document.section import Decay, Lease, Positive, StrategySection, Whole, refusal

from .rules import MomentumRule, SgdRule


class Asynchronous(StrategySection):
    """Asynchronous SGD (You et al. 2017, sections 3.1, 3.2 and 5.1): each mini-batch is fetched for and pushed.

    It is Downpour at n_fetch = n_push = 1 without a warm start; with momentum the velocity is the shards' (equations 3
    and 4). Hogwild's shards let pushes of a segment run side by side.
    """

    name: Literal["async-sgd", "async-msgd", "hogwild-sgd"] = Field(
        description="Which strategy this is; msgd has momentum"
    )
    batch: Annotated[Whole, Field(ge=1, le=10**9)] = Field(default=32, description="Samples per mini-batch")
    rate: Positive = Field(description="eta, before the schedule; parameter units per gradient unit")
    mu: Decay | None = Field(
        default=None, description="Of async-msgd: part of the velocity that is kept at each push; null for 0.9"
    )
    lease: Lease = None

    n_fetch: ClassVar[int] = 1
    n_push: ClassVar[int] = 1
    literal: ClassVar[bool] = False
    overlap: ClassVar[bool] = False
    local_rate: ClassVar[None] = None
    staleness: ClassVar[None] = None
    staleness_aware: ClassVar[bool] = False
    clip_norm: ClassVar[None] = None
    warm_start: ClassVar[None] = None

    @property
    def locked(self) -> bool:
        """Whether one push of a segment waits for another: but for Hogwild's."""
        return self.name != "hogwild-sgd"

    @property
    def rule(self) -> SgdRule | MomentumRule:
        """What shards apply."""
        if self.name != "async-msgd":
            return SgdRule(name="sgd", rate=self.rate)
        return MomentumRule(name="caffe-momentum", rate=self.rate, mu=0.9 if self.mu is None else self.mu)

    @property
    def at_shards(self) -> SgdRule | MomentumRule:
        """The same."""
        return self.rule

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.mu is not None and self.name != "async-msgd":
            raise refusal("name", f"must be async-msgd where mu is given: {self.name} has no velocity")
        return self
