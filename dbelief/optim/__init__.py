"""Update rules: what a shard does with a gradient, element by element and in place."""

from .apply import apply_rule, warm_up
from .factory import ROW_RULES, RULES, make_row_rule, make_rule
from .present import apply_present, counts_steps, missed_after
from .rules.rule import Rule

__all__ = [
    "ROW_RULES",
    "RULES",
    "Rule",
    "apply_present",
    "apply_rule",
    "counts_steps",
    "make_row_rule",
    "make_rule",
    "missed_after",
    "warm_up",
]
