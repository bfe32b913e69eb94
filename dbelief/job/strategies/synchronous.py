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
    parameters are one, bit for bit. In the form "shards" the shards hold the gradients of a step until all are there,
    and apply the rule to their mean, as downpour with staleness 0 does.
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
    form: Literal["workers", "shards"] = Field(
        default="workers", description="Where the gradients of a step are summed: among the workers, or at the shards"
    )
    clip_norm: Positive | None = Field(
        default=None, description="Longest gradient of a step, as a Euclidean norm in gradient units; null for any"
    )
    reduction: Reduction = Field(default_factory=Reduction, description="How gradients are summed")
    lease: Lease = None

    staleness_aware: ClassVar[bool] = False
    literal: ClassVar[bool] = False
    overlap: ClassVar[bool] = False
    local_rate: ClassVar[None] = None
    warm_start: ClassVar[None] = None
    n_push: ClassVar[int] = 1
    n_fetch: ClassVar[int] = 1

    @property
    def grouped(self) -> bool:
        """Whether workers exchange among themselves."""
        return self.form == "workers"

    @property
    def staleness(self) -> Literal[0] | None:
        """The dial of the shards: 0 where they wait for all gradients of a step."""
        return None if self.grouped else 0

    @property
    def at_shards(self) -> Rule | ReplaceRule:
        """What shards apply; the parameters of a group come from its workers as they are."""
        return ReplaceRule(name="replace") if self.grouped else self.rule

    @model_validator(mode="after")
    def _form_fits(self) -> Self:
        if self.form == "shards" and self.gives != "mean":
            raise refusal("gives", "must be mean with form shards, not sum")
        if self.form == "shards" and self.reduction != Reduction():
            raise refusal("reduction", "needs form workers: nothing is summed among the workers else")
        return self
