"""The `strategy` section of Downpour SGD."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dbelief.job.document.section import Lease, Natural, Positive, Section, Share, StrategySection, Whole, refusal

from .rules import Rule


class WarmStart(Section):
    """One replica trains alone until so many samples, or down to so much loss; whichever comes first."""

    samples: Natural | None = Field(default=None, description="Samples that the first replica trains alone")
    loss: float | None = Field(default=None, description="Mean loss per sample at which the others join")
    share: Share = Field(
        default=0.05,
        description="Used where neither samples nor loss is given: share of all samples of the job, "
        "or of one epoch where the limits name no number of samples",
    )


class Downpour(StrategySection):
    """Downpour SGD (DistBelief, section 4.1)."""

    name: Literal["downpour"] = Field(description="Which strategy this is")
    batch: Annotated[Whole, Field(ge=1, le=10**9)] = Field(default=32, description="Samples per mini-batch")
    rule: Rule = Field(description="How a shard applies a pushed gradient")
    n_fetch: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        default=1, description="Mini-batches from one fetch of parameters to the next"
    )
    n_push: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        default=1, description="Mini-batches from one push of gradients to the next"
    )
    literal: bool = Field(
        default=False,
        description="Push in the order of the paper's algorithm 7.1, after mini-batch 0, not after n_push",
    )
    overlap: bool = Field(
        default=False, description="Let a fetch run ahead of the acknowledgement of the push before it"
    )
    local_rate: Positive | None = Field(
        default=None, description="Learning rate of local steps between fetches; null for the rule's own"
    )
    staleness: Annotated[Whole, Field(ge=0, le=10**6)] | None = Field(
        default=None,
        description="Clocks (mini-batches) by which replicas may differ: null runs free, 0 is synchronous; "
        "at N updates are applied as they arrive, and no replica leads by more than N + 1",
    )
    staleness_aware: bool = Field(
        default=False,
        description="Divide the rate of a push by its staleness in versions, in each segment, where that is above 1; "
        "only where staleness is null",
    )
    clip_norm: Positive | None = Field(
        default=None,
        description="Longest gradient a replica pushes, as a Euclidean norm in gradient units; null for any",
    )
    warm_start: WarmStart | None = Field(
        default_factory=WarmStart, description="One replica first; null for all at once"
    )
    lease: Lease = None

    @property
    def at_shards(self) -> Rule:
        """What shards apply."""
        return self.rule

    @model_validator(mode="after")
    def _check_staleness(self) -> Self:
        if self.staleness is None:
            return self
        if self.staleness_aware:
            raise refusal("staleness_aware", f"needs staleness null, not {self.staleness}: the bound limits it already")
        if self.staleness:
            # At a fetch, `staleness` clocks below the last one that it is for may not be pushed yet, and the slowest
            # replica must not wait for itself.
            least = self.n_push + self.n_fetch - 1 + self.overlap * (self.n_fetch - 1)
            if self.staleness < least:
                cadence = f"n_push {self.n_push}, n_fetch {self.n_fetch}" + ", overlap true" * self.overlap
                raise refusal("staleness", f"must be null, or at least {least} with {cadence}, not {self.staleness}")
            return self
        wrong = [f"n_push {self.n_push}"] * (self.n_push > 1) + [f"n_fetch {self.n_fetch}"] * (self.n_fetch > 1)
        wrong += ["overlap true"] * self.overlap
        if wrong:
            raise refusal("staleness", f"0 needs n_push 1, n_fetch 1 and overlap false, not {', '.join(wrong)}")
        return self
