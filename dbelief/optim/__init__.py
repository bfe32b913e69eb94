"""Update rules: what a shard does with a gradient, element by element and in place."""

from .apply import apply_rule, warm_up
from .factory import RULES, make_rule
from .present import apply_present, counts_steps, missed_after
from .rules.rule import Rule

__all__ = ["RULES", "Rule", "apply_present", "apply_rule", "counts_steps", "make_rule", "missed_after", "warm_up"]
