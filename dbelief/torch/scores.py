"""What a script's `score` returns, and what an evaluation gives back to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from dbelief.errors import UserError
from dbelief.evaluation.evaluate import Quality

Score = Callable[[Any, Any], "float | tuple[float, float] | Mapping[str, float]"]
"""Given the module in evaluation mode, and the data: the mean loss; or it and the accuracy, as a pair or by name."""


class Scored(tuple[float, float | None]):
    """Result of an evaluation: a pair of loss and accuracy, `loss, accuracy = sync.evaluate(...)`, with its metrics.

    Attributes
    ----------
    metrics : dict of str to float
        Those of the job's `evaluate.metrics` by name, without those that are not finite.
    """

    metrics: dict[str, float]

    def __new__(cls, pair: Iterable[float | None], metrics: Mapping[str, float] | None = None) -> Self:
        """From a pair of loss and accuracy."""
        made = super().__new__(cls, pair)
        made.metrics = dict(metrics or {})
        return made

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self[0]

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions, 0 to 1; None where `score` gives none."""
        return self[1]

    def __repr__(self) -> str:
        return f"Scored(loss={self.loss!r}, accuracy={self.accuracy!r}, metrics={self.metrics!r})"


def checked_score(found: Any, metrics: Sequence[str]) -> Quality:
    """What `score` returned; a metric that is not finite is left out.

    Raises
    ------
    UserError
        It is none of the forms, or has not exactly the metrics that the job lists.
    """
    rest: dict[str, Any] = {}
    try:
        if isinstance(found, Mapping):
            rest = dict(found)
            loss, accuracy = rest.pop("loss"), rest.pop("accuracy", None)
        elif isinstance(found, tuple | list):
            loss, accuracy = found
        else:
            loss, accuracy = found, None
        loss, accuracy = float(loss), None if accuracy is None else float(accuracy)
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(
            f"score returned {found!r}: give the mean loss, a pair of loss and accuracy, or a mapping of "
            f"{', '.join(['loss', 'accuracy', *metrics])}"
        ) from error
    if accuracy is not None and not 0 <= accuracy <= 1:
        raise UserError(f"score returned accuracy {accuracy:g}: give a share, 0 to 1")
    if {*rest} != {*metrics}:
        missing = [name for name in metrics if name not in rest]
        what = f"no {missing[0]!r}" if missing else f"{next(iter(rest.keys() - {*metrics}))!r}"
        listed = ", ".join(metrics) or "none"
        raise UserError(f"score returned {what}, and evaluate.metrics in the job file lists {listed}")
    values: dict[str, float] = {}
    for name, value in rest.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            raise UserError(f"score returned {value!r} as {name!r}: must be a number, NaN where it has none") from None
    return Quality(loss, accuracy, {name: value for name, value in values.items() if math.isfinite(value)})
