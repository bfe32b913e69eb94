"""The `strategy` section of DiLoCo: replicas step by themselves, and shards step by what they have changed."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dbelief.job.document.section import (
    Lease,
    Members,
    NonNegative,
    Positive,
    Share,
    StrategySection,
    Whole,
    refusal,
)

from .rules import AdamRule, AddRule, MomentumRule, Rule, SgdRule

MOST_FRAGMENTS = 64
Outer = Annotated[SgdRule | MomentumRule | AdamRule, Field(discriminator="name")]


class Diloco(StrategySection):
    """DiLoCo (Douillard et al. 2023, algorithm 1): inner steps at each replica, outer steps at the shards.

    In a round each replica makes `steps` steps of its own from the shards' parameters, w to w_i. Shards wait for all,
    or for a quorum, and apply the outer rule to the weighted mean of w - w_i. What the inner rule keeps stays at the
    replica.
    """

    name: Literal["diloco"] = Field(description="Which strategy this is")
    batch: Annotated[Whole, Field(ge=1, le=10**9)] = Field(default=32, description="Samples per mini-batch")
    steps: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        default=32, description="H, mini-batches of a replica in a round; the last round of a lease may have fewer"
    )
    inner: Rule | None = Field(
        default=None, description="How a replica applies a gradient; null with a script, which makes its own steps"
    )
    outer: Outer = Field(
        default_factory=lambda: MomentumRule(name="nesterov", rate=0.7, mu=0.9),
        description="How a shard applies the mean difference of a round, as a gradient; its rate is constant",
    )
    clip_norm: Positive | None = Field(
        default=None,
        description="Longest gradient of a mini-batch, as a Euclidean norm in gradient units; null for any",
    )
    fragments: Annotated[Whole, Field(ge=1, le=MOST_FRAGMENTS)] = Field(
        default=1,
        description="Parts of the parameters that are exchanged at different steps of a round; a segment at least each",
    )
    delay: Whole = Field(
        default=0,
        ge=0,
        description="Mini-batches that a replica computes while a push and its fetch travel; 0 waits for them",
    )
    blend: Share = Field(
        default=0.0,
        description="Share of its own parameters that a replica keeps where those of the shards arrive",
    )
    weigh: Literal["samples", "rate", "none"] = Field(
        default="samples",
        description="Weight of a replica in a round's mean: its samples; these times its samples a step; or all alike",
    )
    quorum: Members | None = Field(
        default=None, description="Replicas whose pushes end a round; null, or more than train: all of them"
    )
    grace_s: Annotated[NonNegative, Field(le=86_400)] | Literal["auto"] = Field(
        default="auto",
        description="Seconds that a round waits for the others after its quorum; auto: a 32nd of the time up to it",
    )
    stale: Share = Field(
        default=0.5,
        description="Factor of a push's weight, in the next round, for each round that it comes too late; 0 drops it",
    )
    lease: Lease = None

    staleness: ClassVar[Literal[0]] = 0
    staleness_aware: ClassVar[bool] = False
    warm_start: ClassVar[None] = None

    @model_validator(mode="after")
    def _arrives_in_its_round(self) -> Self:
        if self.fragments > self.steps:
            raise refusal(
                "fragments", f"must be at most steps, {self.steps}: each is exchanged after a step of its own"
            )
        if self.delay > self.steps // self.fragments:
            each = f"steps / fragments, {self.steps // self.fragments}"
            raise refusal("delay", f"must be at most {each}: a push travels until the next one begins")
        return self

    def weight(self, samples: int, steps: int) -> int:
        """Weight of a push in the mean of its round (rate: Decoupled DiLoCo, 2026, arXiv:2604.21428)."""
        rate = max(1, samples * samples // (steps * self.batch))  # in mini-batches a step, so that it is small
        return {"samples": samples, "rate": rate, "none": 1}[self.weigh]

    @property
    def grace(self) -> float | None:
        """`grace_s` in seconds; None: a share of the time up to the quorum."""
        return None if isinstance(self.grace_s, str) else self.grace_s

    @property
    def n_push(self) -> int:
        """Mini-batches behind a push."""
        return self.steps

    @property
    def n_fetch(self) -> int:
        """The same: what is pushed starts from what was fetched."""
        return self.steps

    @property
    def clock_samples(self) -> int:
        """See `StrategySection.clock_samples`: a round's."""
        return self.batch * self.steps

    @property
    def rule(self) -> Rule:
        """How a replica steps."""
        return AddRule(name="add") if self.inner is None else self.inner

    @property
    def at_shards(self) -> Outer:
        """What shards apply."""
        return self.outer
