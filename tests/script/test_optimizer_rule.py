"""The rule of the shards that makes a torch optimiser's step, and optimisers that have none."""

from __future__ import annotations

from typing import Any

import pytest

from dbelief.errors import ModelError

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
from dbelief.torch.optimizer_rule import check_rule, rule_of  # noqa: E402 (needs torch)

pytestmark = pytest.mark.torch


def parameters() -> list[Any]:
    return [torch.zeros(2, requires_grad=True)]


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (lambda: torch.optim.SGD(parameters(), lr=0.1), {"name": "sgd", "rate": 0.1}),
        (
            lambda: torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
            {"name": "momentum", "rate": 0.1, "mu": 0.9, "weight_decay": 0.01},
        ),
        (
            lambda: torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True),
            {"name": "nesterov", "rate": 0.1, "mu": 0.9},
        ),
        (
            lambda: torch.optim.Adagrad(parameters(), lr=0.1, initial_accumulator_value=0.5, eps=1e-9),
            {"name": "adagrad", "rate": 0.1, "eps": 1e-9, "a0": 0.5},
        ),
        (
            lambda: torch.optim.AdamW(parameters(), lr=0.1, betas=(0.8, 0.99), eps=1e-7, weight_decay=0.3),
            {"name": "adamw", "rate": 0.1, "beta1": 0.8, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.3},
        ),
    ],
)
def test_the_rule_of_an_optimiser(optimizer: Any, rule: dict[str, Any]) -> None:
    assert rule_of(optimizer()) == rule
    check_rule(optimizer(), rule)
    with pytest.raises(ModelError, match=r"write that rule into the job file, or change the optimiser$"):
        check_rule(optimizer(), {**rule, "weight_decay": 0.5})


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (lambda: torch.optim.Rprop(parameters()), "no rule of the shards makes the steps of Rprop"),
        (lambda: torch.optim.SGD(parameters(), lr=0.1, maximize=True), "SGD with maximize=True is no rule"),
        (lambda: torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, dampening=0.1), "SGD with dampening=0.1 is no"),
        (lambda: torch.optim.Adagrad(parameters(), lr_decay=0.1), "Adagrad with lr_decay=0.1 is no rule"),
        (lambda: torch.optim.Adam(parameters(), amsgrad=True), "Adam with amsgrad=True is no rule"),
        (lambda: torch.optim.AdamW(parameters(), maximize=True), "AdamW with maximize=True is no rule"),
        (
            lambda: torch.optim.SGD([{"params": parameters()}, {"params": parameters(), "lr": 1.0}], lr=0.1),
            "SGD has 2 groups, and a rule of the shards has one",
        ),
    ],
)
def test_an_optimiser_without_a_rule_is_refused(optimizer: Any, why: str) -> None:
    with pytest.raises(ModelError, match=rf"^{why}"):
        rule_of(optimizer())
