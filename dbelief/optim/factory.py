"""Rules by name."""

import dataclasses
from collections.abc import Callable, Mapping

from .rules.adagrad import Adagrad
from .rules.adam import Adam, AdamW, LazyAdam
from .rules.add import Add
from .rules.elastic import ElasticMove
from .rules.ftrl import Ftrl
from .rules.momentum import CaffeMomentum, Momentum, Nesterov
from .rules.replace import Replace
from .rules.row_adagrad import RowAdagrad
from .rules.rule import Rule
from .rules.sgd import SGD

_MAKERS: Mapping[str, Callable[..., Rule]] = {
    rule.name: rule
    for rule in (SGD, Momentum, CaffeMomentum, Nesterov, Adagrad, Adam, AdamW, Ftrl, Add, ElasticMove, Replace)
}

_OF_ROWS: Mapping[str, Callable[..., Rule]] = {rule.name: rule for rule in (RowAdagrad, LazyAdam)}
"""Those for rows of tables alone."""

RULES: tuple[str, ...] = tuple(name for name in _MAKERS if name not in (Add.name, ElasticMove.name, Replace.name))
"""Names of the rules for gradients; the others take differences or weights."""


ROW_RULES: tuple[str, ...] = (*RULES, *_OF_ROWS)
"""Names of the rules for gradients of rows of tables."""


def make_row_rule(name: str, options: Mapping[str, float]) -> Rule:
    """Make a rule of a table's rows: see `make_rule`; one of `ROW_RULES`."""
    return _make(name, options, {**_MAKERS, **_OF_ROWS}, ROW_RULES)


def make_rule(name: str, options: Mapping[str, float]) -> Rule:
    """Make a rule from plain words.

    Parameters
    ----------
    name : str
        One of `RULES`, add, elastic, or replace.
    options : mapping of name to number
        Fields of the rule's class; what is left out has its default. The learning rate is none of them: it
        comes with each push.

    Raises
    ------
    ValueError
        There is no such rule or option, or a value is out of its range.
    """
    return _make(name, options, _MAKERS, RULES)


def _make(
    name: str, options: Mapping[str, float], makers: Mapping[str, Callable[..., Rule]], known_rules: tuple[str, ...]
) -> Rule:
    if name not in makers:
        raise ValueError(f"no rule {name!r}; there is: {', '.join(known_rules)}")
    make = makers[name]
    known = [field.name for field in dataclasses.fields(make)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise ValueError(f"rule {name} has no option {option!r}; there is: {', '.join(known) or 'none'}")
    return make(**{option: float(value) for option, value in options.items()})
