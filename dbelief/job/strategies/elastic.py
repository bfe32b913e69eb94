"""The `strategy` section of elastic averaging."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dbelief.job.document.section import Decay, Lease, Positive, StrategySection, Whole, refusal

from .rules import ElasticRule, ReplaceRule
from .synchronous import Reduction


class Elastic(StrategySection):
    """Elastic averaging (Zhang et al. 2015; You et al. 2017, sections 5.1 and 6.1).

    Each replica trains weights of its own, and now and then both it and the centre move towards each other: whenever it
    is ready (async), all at the same time (sync), or one after the other, round robin (easgd, the original).
    """

    name: Literal["easgd", "async-easgd", "async-measgd", "hogwild-easgd", "sync-easgd"] = Field(
        description="Which strategy this is; measgd has momentum"
    )
    batch: Annotated[Whole, Field(ge=1, le=10**9)] = Field(default=32, description="Samples per mini-batch")
    rate: Positive = Field(description="eta, before the schedule; parameter units per gradient unit")
    rho: Positive | None = Field(
        default=None,
        description="Elastic force: what parts replica and centre shrinks by eta rho at each exchange; "
        "null for 0.9 / (eta replicas)",
    )
    form: Literal[1, 2, 3] = Field(
        default=1,
        description="Of sync-easgd: 1 through the shards; 2 among the workers; 3 as 2, while they compute",
    )
    reduction: Reduction = Field(
        default_factory=Reduction, description="Of sync-easgd, form 2 and 3: how weights are summed"
    )
    period: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        default=1, description="tau, mini-batches from one exchange to the next"
    )
    overlap: bool = Field(
        default=False,
        description="Of a script: it makes its next steps while an exchange travels; a model of the job exchanges "
        "beside a step anyway",
    )
    mu: Decay | None = Field(
        default=None, description="Of async-measgd: part of the velocity that is kept at each step; null for 0.9"
    )
    nesterov: bool = Field(
        default=False, description="Of async-measgd: the gradient is taken where the velocity alone would lead"
    )
    clip_norm: Positive | None = Field(
        default=None,
        description="Longest gradient of a mini-batch, as a Euclidean norm in gradient units; null for any",
    )
    lease: Lease = None

    staleness_aware: ClassVar[bool] = False
    literal: ClassVar[bool] = False
    warm_start: ClassVar[None] = None

    @property
    def staleness(self) -> Literal[0] | None:
        """The dial: 0 is in step or in turn, None runs free."""
        return 0 if self.turns or (self.name == "sync-easgd" and not self.grouped) else None

    @property
    def turns(self) -> bool:
        """Whether replicas compute one after the other: round robin."""
        return self.name == "easgd"

    @property
    def locked(self) -> bool:
        """Whether one exchange of a segment waits for another: but for Hogwild's."""
        return self.name != "hogwild-easgd"

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
    def grouped(self) -> bool:
        """Whether workers exchange among themselves: from form 2 on."""
        return self.form > 1

    @property
    def rule(self) -> ElasticRule:
        """How centre and weights move towards each other."""
        return ElasticRule(name="elastic", rate=self.rate)

    @property
    def at_shards(self) -> ElasticRule | ReplaceRule:
        """What shards apply."""
        return ReplaceRule(name="replace") if self.grouped else self.rule

    def moving_rate(self, rate: float, replicas: int) -> float:
        """How much of their difference a replica and the centre each give up, at this learning rate."""
        return 0.9 / max(1, replicas) if self.rho is None else rate * self.rho

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.name != "async-measgd" and (self.mu is not None or self.nesterov):
            raise refusal("name", f"must be async-measgd where mu or nesterov is given: {self.name} has no velocity")
        if self.name != "sync-easgd" and self.form > 1:
            raise refusal("form", f"must be 1 with {self.name}, not {self.form}: only sync-easgd has others")
        if not self.grouped and self.reduction != Reduction():
            raise refusal("reduction", "needs sync-easgd with form 2 or 3: nothing is summed among the workers else")
        if self.name in ("sync-easgd", "easgd") and self.period > 1:
            raise refusal("period", f"must be 1 with {self.name}, not {self.period}")
        if self.rho is not None and self.rate * self.rho > 1:
            raise refusal("rho", f"must be at most 1 / rate, {1 / self.rate:g}: they would move past each other")
        return self
