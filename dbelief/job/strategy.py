"""The `strategy` and `schedule` sections: how gradients become parameters."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .kinds import Count, Decay, Natural, NonNegative, Positive, Section, Share, Whole, refusal


class SgdRule(Section):
    """w <- w - rate * g."""

    name: Literal["sgd"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units per gradient unit")


class MomentumRule(Section):
    """Heavy-ball momentum, the rate outside the velocity (torch's sense): v <- mu v + g, w <- w - rate * v."""

    name: Literal["momentum"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units per gradient unit")
    mu: Decay = Field(default=0.9, description="Part of the velocity that is kept at each push, without unit")


class NesterovRule(Section):
    """Nesterov's momentum, the rate outside the velocity (torch's sense): v <- mu v + g, w <- w - rate * (g + mu v)."""

    name: Literal["nesterov"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units per gradient unit")
    mu: Decay = Field(default=0.9, description="Part of the velocity that is kept at each push, without unit")


class AdagradRule(Section):
    """A <- A + g^2, w <- w - rate * g / (sqrt(A) + eps); no step where A = 0 (DistBelief, section 4.1)."""

    name: Literal["adagrad"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units")
    eps: NonNegative = Field(default=0.0, description="Added to the square root, in gradient units")
    a0: NonNegative = Field(default=0.0, description="Where A starts; gradient units squared")


class AdamRule(Section):
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1)."""

    name: Literal["adam"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units")
    beta1: Decay = Field(default=0.9, description="Decay of the mean gradient per push, without unit")
    beta2: Decay = Field(default=0.999, description="Decay of the mean square per push, without unit")
    eps: NonNegative = Field(default=1e-8, description="Added to the square root; gradient units")


class AdamWRule(Section):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): w <- (1 - rate * weight_decay) w, then Adam."""

    name: Literal["adamw"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units")
    beta1: Decay = Field(default=0.9, description="Decay of the mean gradient per push, without unit")
    beta2: Decay = Field(default=0.999, description="Decay of the mean square per push, without unit")
    eps: NonNegative = Field(default=1e-8, description="Added to the square root; gradient units")
    weight_decay: NonNegative = Field(
        default=0.01, description="Share of the parameters taken away per unit of rate, once per push"
    )


Rule = Annotated[
    SgdRule | MomentumRule | NesterovRule | AdagradRule | AdamRule | AdamWRule, Field(discriminator="name")
]


class WarmStart(Section):
    """One replica trains alone until so many samples, or down to so much loss; whichever comes first."""

    samples: Natural | None = Field(default=None, description="Samples that the first replica trains alone")
    loss: float | None = Field(default=None, description="Mean loss per sample at which the others join")
    share: Share = Field(
        default=0.05,
        description="Used where neither samples nor loss is given: share of all samples of the job, "
        "or of one epoch where the limits name no number of samples",
    )


class Downpour(Section):
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
        "at N updates come as they are ready, and nobody leads by more than N + 1",
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
    lease: Count | None = Field(
        default=None, description="Samples per lease handed to a replica; null lets the coordinator choose"
    )

    @model_validator(mode="after")
    def _dial(self) -> Self:
        if self.staleness is None:
            return self
        if self.staleness_aware:
            raise refusal("staleness_aware", f"needs staleness null, not {self.staleness}: the dial bounds it already")
        if self.staleness:
            # When a fetch is asked for, so many clocks below the last one that it is for may not be pushed yet, and the
            # one who is furthest behind must not wait for itself.
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

    @model_validator(mode="after")
    def _lease_holds_a_batch(self) -> Self:
        _check_lease(self.lease, self.batch)
        return self


def _check_lease(lease: int | None, batch: int) -> None:
    if lease is not None and lease < batch:
        raise refusal("lease", f"must be at least one batch, {batch} samples, or null, not {lease}")


class Sandblaster(Section):
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


class ElasticRule(Section):
    """w <- w + a (x - w): the centre moves towards a worker's own weights."""

    name: Literal["elastic"] = Field(description="Which rule this is")
    rate: Positive = Field(description="eta, the learning rate of the workers' own steps")


class Elastic(Section):
    """Elastic averaging (Zhang et al. 2015; You et al. 2017, sections 5.1 and 6.1).

    Each replica trains weights of its own, and now and then both it and the centre move towards each other: whenever it
    is ready (async), or all at the same time (sync).
    """

    name: Literal["async-easgd", "async-measgd", "sync-easgd"] = Field(
        description="Which strategy this is; measgd has momentum"
    )
    batch: Annotated[Whole, Field(ge=1, le=10**9)] = Field(default=32, description="Samples per mini-batch")
    rate: Positive = Field(description="eta, before the schedule; parameter units per gradient unit")
    rho: Positive | None = Field(
        default=None,
        description="Elastic force: what parts replica and centre shrinks by eta rho at each exchange; "
        "null for 0.9 / (eta replicas)",
    )
    period: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        default=1, description="tau, mini-batches from one exchange to the next"
    )
    mu: Decay | None = Field(
        default=None, description="Of async-measgd: part of the velocity that is kept at each step; null for 0.9"
    )
    nesterov: bool = Field(
        default=False, description="Of async-measgd: the gradient is taken where the velocity alone would lead"
    )
    lease: Count | None = Field(
        default=None, description="Samples per lease handed to a replica; null lets the coordinator choose"
    )

    staleness_aware: ClassVar[bool] = False
    literal: ClassVar[bool] = False
    clip_norm: ClassVar[None] = None
    warm_start: ClassVar[None] = None

    @property
    def staleness(self) -> Literal[0] | None:
        """The dial: 0 is in step, None runs free."""
        return 0 if self.name == "sync-easgd" else None

    @property
    def n_push(self) -> int:
        """Mini-batches behind an exchange."""
        return self.period

    @property
    def n_fetch(self) -> int:
        """The same: an exchange fetches too."""
        return self.period

    @property
    def momentum(self) -> float | None:
        """Part of the velocity that is kept; None where there is none."""
        return (0.9 if self.mu is None else self.mu) if self.name == "async-measgd" else None

    @property
    def rule(self) -> ElasticRule:
        """What shards apply."""
        return ElasticRule(name="elastic", rate=self.rate)

    def moving_rate(self, rate: float, replicas: int) -> float:
        """How much of their difference a replica and the centre each give up, at this learning rate."""
        return 0.9 / max(1, replicas) if self.rho is None else rate * self.rho

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.name != "async-measgd" and (self.mu is not None or self.nesterov):
            raise refusal("name", f"must be async-measgd where mu or nesterov is given: {self.name} has no velocity")
        if self.name == "sync-easgd" and self.period > 1:
            raise refusal("period", f"must be 1 with sync-easgd, not {self.period}")
        if self.rho is not None and self.rate * self.rho > 1:
            raise refusal("rho", f"must be at most 1 / rate, {1 / self.rate:g}: they would move past each other")
        _check_lease(self.lease, self.batch)
        return self


Strategy = Annotated[Downpour | Sandblaster | Elastic, Field(discriminator="name")]


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
