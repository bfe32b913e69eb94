"""Update rules: what a shard does with a gradient, element by element and in place."""

from .make import RULES, make_rule, warm_up
from .rule import Rule

__all__ = ["RULES", "Rule", "make_rule", "warm_up"]
