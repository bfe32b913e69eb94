"""The list `evaluate.metrics`: what is measured beside loss and accuracy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from .document.section import PythonName, Section, Words

OF_CLASSES = {"auc": "higher", "log_loss": "lower", "perplexity": "lower", "calibration_error": "lower"}
"""Metrics of classes, and which values are better; `top_N` too, whose higher ones are."""
OF_NUMBERS = {"mae": "lower", "rmse": "lower", "r2": "higher"}
"""Metrics of targets that are numbers."""
TOP = "top_"


class OwnMetric(Section):
    """A metric of the user's own."""

    name: Annotated[
        str, Field(pattern="^[a-z][a-z0-9_]{0,39}$"), Words("a name of a-z, 0-9 and _ that begins with a letter")
    ] = Field(description="Its name in results")
    python: PythonName | None = Field(
        default=None,
        description="file.py:function, called with outputs (n, k) and targets; null for one that a script returns",
    )
    better: Literal["higher", "lower"] = Field(default="higher", description="Which values are better")

    @property
    def file(self) -> str | None:
        """Path of the file as written; see `dbelief.job.resolve`."""
        return None if self.python is None else self.python.rpartition(":")[0]

    @property
    def object(self) -> str | None:
        """Name of the function in the file."""
        return None if self.python is None else self.python.rpartition(":")[2]


NAMED = f"one of {', '.join([*OF_CLASSES, f'{TOP}5', *OF_NUMBERS])} (or {TOP} with another number)"
NamedMetric = Annotated[
    str,
    Field(pattern=rf"^({'|'.join([*OF_CLASSES, *OF_NUMBERS])}|{TOP}[1-9][0-9]{{0,5}})$"),
    Words(NAMED),
]
Metric = Annotated[
    Annotated[NamedMetric, Tag("named")] | Annotated[OwnMetric, Tag("own")],
    Discriminator(lambda value: "named" if isinstance(value, str) else "own"),
    Words(f"{NAMED}, or a mapping with name, python and better"),
]


def name_of(metric: str | OwnMetric) -> str:
    """The name of a metric in results."""
    return metric if isinstance(metric, str) else metric.name


def higher_is_better(metric: str | OwnMetric) -> bool:
    """Whether higher values are better."""
    if isinstance(metric, OwnMetric):
        return metric.better == "higher"
    return metric.startswith(TOP) or (OF_CLASSES | OF_NUMBERS)[metric] == "higher"
