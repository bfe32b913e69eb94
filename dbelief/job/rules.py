"""Update rules: how a shard applies what is pushed."""

from typing import Annotated, Literal

from pydantic import Field

from .kinds import Decay, NonNegative, Positive, Section


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


class ElasticRule(Section):
    """w <- w + a (x - w): the centre moves towards a worker's own weights."""

    name: Literal["elastic"] = Field(description="Which rule this is")
    rate: Positive = Field(description="eta, the learning rate of the workers' own steps")


class ReplaceRule(Section):
    """w <- x: what the workers of a group have among themselves is kept as it is."""

    name: Literal["replace"] = Field(description="Which rule this is")
    rate: Positive = Field(default=1.0, description="Of no meaning: nothing is scaled by it")
