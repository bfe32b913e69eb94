"""Update rules: how a shard applies what is pushed."""

from typing import Annotated, Literal

from pydantic import Field

from dbelief.job.document.section import Decay, NonNegative, Positive, Section

Decaying = Annotated[
    float,
    Field(
        ge=0, description="Multiple of the parameters that is added to a gradient, once per push; per parameter unit"
    ),
]
"""Decay in the gradient, of all parameters: the loss with weight_decay / 2 times their squared norm on top."""


class SgdRule(Section):
    """w <- w - rate * (g + weight_decay * w)."""

    name: Literal["sgd"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units per gradient unit")
    weight_decay: Decaying = 0.0


class MomentumRule(Section):
    """Momentum, with d = g + weight_decay * w.

    momentum: heavy ball in torch's sense, the rate outside the velocity: v <- mu v + d, w <- w - rate * v.

    caffe-momentum: heavy ball in Caffe's sense, the rate inside the velocity: v <- mu v + rate * d, w <- w - v. As
    `momentum` while the rate is constant; where it changes, what was gathered is walked off at the rate it had.

    nesterov: the rate outside the velocity (torch's sense): v <- mu v + d, w <- w - rate * (d + mu v).
    """

    name: Literal["momentum", "caffe-momentum", "nesterov"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units per gradient unit")
    mu: Decay = Field(default=0.9, description="Part of the velocity that is kept at each push, without unit")
    weight_decay: Decaying = 0.0


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


class FtrlRule(Section):
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1), for sparse features: with l1, most parameters become 0."""

    name: Literal["ftrl"] = Field(description="Which rule this is")
    rate: Positive = Field(description="alpha, the learning rate before the schedule; parameter units")
    beta: NonNegative = Field(default=1.0, description="Added to the root of the sum of squares, in gradient units")
    l1: NonNegative = Field(
        default=0.0, description="Factor of the penalty |w| over all pushes together, in gradient units"
    )
    l2: NonNegative = Field(
        default=0.0, description="Factor of the penalty w^2 / 2 over all pushes; gradient per parameter unit"
    )


class AddRule(Section):
    """w <- w + d: a script steps with an optimiser of its own, and pushes the difference that it made."""

    name: Literal["add"] = Field(description="Which rule this is")
    rate: Positive = Field(default=1.0, description="Of no meaning: differences are not scaled")


Rule = Annotated[
    SgdRule | MomentumRule | AdagradRule | AdamRule | AdamWRule | FtrlRule | AddRule, Field(discriminator="name")
]


class ElasticRule(Section):
    """w <- w + a (x - w): the centre moves towards a worker's own weights."""

    name: Literal["elastic"] = Field(description="Which rule this is")
    rate: Positive = Field(description="eta, the learning rate of the workers' own steps")


class ReplaceRule(Section):
    """w <- x: what the workers of a group have among themselves is kept as it is."""

    name: Literal["replace"] = Field(description="Which rule this is")
    rate: Positive = Field(default=1.0, description="Of no meaning: nothing is scaled by it")
