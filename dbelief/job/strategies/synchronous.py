"""The `strategy` section of synchronous SGD, and how workers sum what they have among themselves."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dbelief.job.document.section import Count, Lease, Members, Positive, Section, StrategySection, Whole, refusal

from .rules import ReplaceRule, Rule


class Reduction(Section):
    """How a vector is summed over the workers of a group."""

    way: Literal["tree", "ring", "server"] = Field(
        default="tree", description="tree: up a tree and down again; server: by one worker; ring: around a ring"
    )
    arity: Members | None = Field(
        default=None, description="Of a tree: children of a worker, a number; null for a binomial tree"
    )
    chunk: Count | None = Field(
        default=None, description="Numbers in a message, at most: one moves on while the next is added; null for all"
    )
    wire: Literal["float16", "bfloat16"] | None = Field(
        default=None, description="What numbers are rounded to on their way; null sends float32"
    )

    @model_validator(mode="after")
    def _only_trees_have_arity(self) -> Self:
        if self.arity is not None and self.way != "tree":
            raise refusal("arity", f"must be null with a {self.way}, not {self.arity}: only a tree has one")
        return self


class SyncSgd(StrategySection):
    """Synchronous SGD by collectives (FireCaffe, section 6).

    Workers sum their gradients among themselves, and each applies the same rule to the same sum: all copies of the
    parameters are one, bit for bit.
    """

    name: Literal["sync-sgd"] = Field(description="Which strategy this is")
    batch: Annotated[Whole, Field(ge=1, le=10**9)] = Field(
        default=32, description="Samples per mini-batch of a worker; a step is made of one from each worker"
    )
    rule: Rule = Field(description="How each worker applies the gradient of a step")
    gives: Literal["mean", "sum"] = Field(
        default="mean",
        description="A step's gradient: the mean over all its samples, or the sum of the workers' means, "
        "which is as many times longer as there are workers",
    )
    clip_norm: Positive | None = Field(
        default=None, description="Longest gradient of a step, as a Euclidean norm in gradient units; null for any"
    )
    reduction: Reduction = Field(default_factory=Reduction, description="How gradients are summed")
    lease: Lease = None

    staleness: ClassVar[None] = None
    staleness_aware: ClassVar[bool] = False
    literal: ClassVar[bool] = False
    n_push: ClassVar[int] = 1
    n_fetch: ClassVar[int] = 1
    at_shards: ClassVar[ReplaceRule] = ReplaceRule(name="replace")
    """The parameters come from the workers as they are."""

    @property
    def grouped(self) -> bool:
        """Whether workers exchange among themselves: always."""
        return True
