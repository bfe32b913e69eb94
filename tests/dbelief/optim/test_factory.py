import math

import pytest

from dbelief.optim import RULES, make_rule
from dbelief.optim.rules.adagrad import Adagrad
from dbelief.optim.rules.adam import Adam


def test_the_rules_there_are() -> None:
    assert RULES == ("sgd", "momentum", "caffe-momentum", "nesterov", "adagrad", "adam", "adamw", "ftrl")


def test_options_reach_the_rule_and_the_rest_is_default() -> None:
    assert make_rule("adagrad", {"a0": 0.1}) == Adagrad(eps=0.0, a0=0.1)
    assert make_rule("adam", {"beta1": 0}) == Adam(0.0, 0.999, 1e-8)


def test_unknown_rule_lists_the_rules() -> None:
    known = "sgd, momentum, caffe-momentum, nesterov, adagrad, adam, adamw, ftrl"
    with pytest.raises(ValueError, match=rf"no rule 'adagard'; there is: {known}$"):
        make_rule("adagard", {})


@pytest.mark.parametrize(
    ("name", "option", "known"),
    [
        ("sgd", "mu", "weight_decay"),
        ("adagrad", "name", "eps, a0"),
        ("adam", "rate", "beta1"),
        ("ftrl", "alpha", "beta, l1, l2"),
        ("elastic", "mu", "none"),
    ],
)
def test_unknown_option_lists_the_options(name: str, option: str, known: str) -> None:
    with pytest.raises(ValueError, match=rf"rule {name} has no option '{option}'; there is: {known}"):
        make_rule(name, {option: 0.5})


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("sgd", "weight_decay", [-0.1, math.inf, math.nan]),
        ("momentum", "mu", [-0.1, 1.0, math.nan]),
        ("adagrad", "eps", [-1.0, math.nan]),
        ("adagrad", "a0", [-0.5, math.inf]),
        ("adam", "beta1", [1.0]),
        ("adam", "beta2", [-0.1]),
        ("adam", "eps", [-1e-8]),
        ("adamw", "beta1", [1.0]),
        ("adamw", "weight_decay", [-0.1, math.inf]),
        ("ftrl", "beta", [-1.0, math.nan]),
        ("ftrl", "l1", [-0.1, math.inf]),
        ("ftrl", "l2", [-0.1, math.nan]),
    ],
)
def test_options_out_of_range(name: str, option: str, values: list[float]) -> None:
    limits = "at least 0 and below 1" if option in ("mu", "beta1", "beta2") else "0 or more"
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name}: {option} is .*, must be {limits}$"):
            make_rule(name, {option: value})
