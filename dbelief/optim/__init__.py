"""Update rules: what a shard does with a gradient, element by element and in place."""

from .apply import apply_rule, warm_up
from .factory import RULES, make_rule
from .rule import Rule

__all__ = ["RULES", "Rule", "apply_rule", "make_rule", "warm_up"]
