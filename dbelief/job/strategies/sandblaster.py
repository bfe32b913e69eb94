"""The `strategy` section of Sandblaster L-BFGS."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dbelief.job.document.section import Count, NonNegative, Positive, StrategySection, Whole, refusal

from .rules import SgdRule


class Sandblaster(StrategySection):
    """Sandblaster L-BFGS (DistBelief, section 4.2): a batch method, its passes cut in small portions."""

    name: Literal["sandblaster"] = Field(description="Which strategy this is")
    batch: Literal["all"] | Count = Field(
        default="all", description="Samples of an iteration: all training data, or so many of them, others each time"
    )
    portion: Count = Field(default=1_000, description="Samples of a portion: much less than a replica's share")
    bundle: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        default=4, description="Portions that a replica computes between two pushes, at most; fewer near the end"
    )
    history: Annotated[Whole, Field(ge=1, le=100)] = Field(
        default=10, description="Pairs of steps and gradient differences that the direction is made of, a number"
    )
    l2: NonNegative = Field(
        default=0.0, description="lambda: the loss gets lambda / 2 times the squared norm of all parameters on top"
    )
    l1: NonNegative = Field(
        default=0.0,
        description="The loss gets l1 times the sum of |w| of all parameters but biases on top: many become exactly 0",
    )
    iterations: Count | None = Field(default=None, description="Iterations after which it ends; null for any number")
    gradient_norm: Positive | None = Field(
        default=None, description="Ends where the gradient is no longer than this; loss units per parameter unit"
    )
    relative_decrease: Positive | None = Field(
        default=None,
        description="Ends where an iteration brings the loss down by no more than this share of it; with batch all",
    )
    backups: bool = Field(default=True, description="Give idle replicas copies of what others have not finished")
    ordered: bool = Field(
        default=False,
        description="Add bundles in their order: the same bits for any number of replicas, at the price of memory",
    )

    rule: ClassVar[SgdRule] = SgdRule(name="sgd", rate=1.0)
    """What shards keep no state for; no push of this strategy is applied by it."""
    at_shards: ClassVar[SgdRule] = rule
    staleness: ClassVar[None] = None
    staleness_aware: ClassVar[bool] = False

    @property
    def ends(self) -> bool:
        """Whether it has a limit of its own."""
        return any(limit is not None for limit in (self.iterations, self.gradient_norm, self.relative_decrease))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch != "all":
            if self.relative_decrease is not None:
                raise refusal("relative_decrease", "needs batch all: losses on different samples do not compare")
            if self.portion > self.batch:
                raise refusal("portion", f"must be at most the batch, {self.batch} samples, not {self.portion}")
        return self
