"""The shards' rule that makes the same step as a torch optimiser, as far as there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dbelief.errors import ModelError

Rule = dict[str, Any]
"""Fields of `strategy.rule` in a job file."""

OTHERS = (
    "with `rule: {name: add}`, elastic averaging or diloco the script makes its own steps: optimizer.step() and "
    "optimizer.zero_grad(), then sync.step, which marks one"
)


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """The rule of an optimiser with one group of parameters.

    Raises
    ------
    ModelError
        No rule of the shards makes its step; names the optimiser, or the setting.
    """
    name = type(optimizer).__name__
    make = _RULES.get(type(optimizer))
    if make is None:
        raise ModelError(f"no rule of the shards makes the steps of {name}; {OTHERS}")
    if len(optimizer.param_groups) != 1:
        raise ModelError(f"{name} has {len(optimizer.param_groups)} groups, and a rule of the shards has one; {OTHERS}")
    group = optimizer.param_groups[0]
    for setting, usual in _ONLY[type(optimizer)].items():
        if group.get(setting, usual) != usual:
            raise ModelError(f"{name} with {setting}={group[setting]} is no rule of the shards; {OTHERS}")
    fields = make(group)
    return {"name": fields.pop("name"), "rate": float(group["lr"]), **fields}


def _sgd(group: Mapping[str, Any]) -> Rule:
    decay = {"weight_decay": group["weight_decay"]} if group["weight_decay"] else {}
    if not group["momentum"]:
        return {"name": "sgd", **decay}
    return {"name": "nesterov" if group["nesterov"] else "momentum", "mu": group["momentum"], **decay}


def _adagrad(group: Mapping[str, Any]) -> Rule:
    return {"name": "adagrad", "eps": group["eps"], "a0": group["initial_accumulator_value"]}


def _adam(group: Mapping[str, Any]) -> Rule:
    beta1, beta2 = group["betas"]
    return {"name": "adam", "beta1": beta1, "beta2": beta2, "eps": group["eps"]}


def _adamw(group: Mapping[str, Any]) -> Rule:
    return {**_adam(group), "name": "adamw", "weight_decay": group["weight_decay"]}


_RULES: Mapping[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], Rule]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
}
_ONLY: Mapping[type[torch.optim.Optimizer], Mapping[str, Any]] = {
    torch.optim.SGD: {"dampening": 0, "maximize": False},
    torch.optim.Adagrad: {"lr_decay": 0, "weight_decay": 0, "maximize": False},
    torch.optim.Adam: {"weight_decay": 0, "amsgrad": False, "maximize": False},
    torch.optim.AdamW: {"amsgrad": False, "maximize": False},
}


def check_rule(optimizer: torch.optim.Optimizer, fields: Mapping[str, Any]) -> None:
    """Check that the job's rule makes the optimiser's step; `fields`: `strategy.rule`, or what stands for it.

    The learning rates are not compared: each push has the optimiser's own.

    Raises
    ------
    ModelError
        It does not; the message has the rule to write into the job file.
    """
    wanted = rule_of(optimizer)
    name = "momentum" if fields["name"] == "caffe-momentum" else fields["name"]  # equal while the rate is constant
    job = {key: value for key, value in fields.items() if key not in ("name", "rate")}
    own = {key: value for key, value in wanted.items() if key not in ("name", "rate")}
    absent = dict.fromkeys(job.keys() - own.keys(), 0.0)
    if name != wanted["name"] or job != own | absent:
        text = ", ".join(f"{key}: {value:g}" if key != "name" else f"name: {value}" for key, value in wanted.items())
        listed = ", ".join(f"{key} {value:g}" for key, value in job.items()) or "no options"
        raise ModelError(
            f"{type(optimizer).__name__} makes the steps of `rule: {{{text}}}`, and the job's strategy has "
            f"{fields['name']} with {listed}: write that rule into the job file, or change the optimiser"
        )
