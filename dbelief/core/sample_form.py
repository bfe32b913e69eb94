"""What a model needs to know of its samples, kept with it: it can be used where the job's data is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

MOST_CHARACTERS = 1 << 20
"""Longest text of a form."""

_WORDS = {
    "features": "a sample's shape is",
    "outputs": "the number of outputs is",
    "classes": "the number of classes is",
    "names": "the names of the classes are",
    "columns": "the names of the columns are",
    "scale": "the scale of the inputs is",
    "whole": "whether inputs are whole numbers is",
    "encoder": "what makes numbers of the columns is",
    "zero_based": "whether indices count from 0 is",
    "objects": "the digest of the training objects' sizes and tags, which changes when one is written again, is",
}


@dataclass(frozen=True)
class SampleForm:
    """Form of a data set's samples.

    Attributes
    ----------
    features
        Shape of one sample's inputs.
    outputs
        Outputs of the model for a sample: the classes, or the width of the targets.
    classes
        Number of labels; None where targets are numbers.
    scale
        Factor that inputs are multiplied by, without unit.
    names
        Names of class 0, 1, ...; None where the source uses these numbers.
    columns
        Names of the inputs; None where they have none.
    whole
        Whether inputs are whole numbers (int64), which are looked up.
    encoder
        State of the encoder of a table's rows, which the inputs are made by: see
        `dbelief.data.tables.table_encoder`; None: inputs are the source's own numbers.
    zero_based
        Whether indices of LIBSVM text count from 0.
    objects
        Digest of the sizes and tags of the objects in a store that the training samples are read from; "": of files.
    about
        What a script says of its samples, by name: what JSON can hold.
    """

    features: tuple[int, ...]
    outputs: int
    classes: int | None = None
    scale: float = 1.0
    names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    whole: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)
    encoder: Mapping[str, Any] | None = None
    zero_based: bool = False
    objects: str = ""

    @classmethod
    def of_script(cls, about: Mapping[str, Any]) -> Self:
        """The form of a script's samples, whose shapes the script alone knows.

        Raises
        ------
        ValueError
            `about` is no mapping of texts to what JSON can hold, or is too long.
        """
        try:
            if not isinstance(about, Mapping):
                raise TypeError("must be a mapping of names, which are texts")
            _check_names(about)
            held = json.loads(json.dumps(dict(about), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"about: {error}") from None
        form = cls((), 0, about=held)
        if len(form.text) > MOST_CHARACTERS:
            raise ValueError(f"about: {len(form.text):,} characters as JSON, and at most {MOST_CHARACTERS:,} are kept")
        return form

    @cached_property
    def text(self) -> str:
        """The form as JSON of one line."""
        return json.dumps(asdict(self))

    def shortened(self) -> SampleForm:
        """The form without names of columns where its text is too long, and if need be without names of classes."""
        for form in (self, replace(self, columns=None)):
            if len(form.text) <= MOST_CHARACTERS:
                return form
        return replace(self, columns=None, names=None)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The form that `text` describes.

        Raises
        ------
        ValueError
            It describes none, or is too long.
        """
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"no form of samples: {len(text)} characters, and at most {MOST_CHARACTERS} are allowed")
        try:
            row = json.loads(text)
            form = cls(
                features=tuple(map(_natural, row["features"])),
                outputs=_natural(row["outputs"]),
                classes=None if row["classes"] is None else _natural(row["classes"]),
                scale=float(row["scale"]),
                names=_names(row, "names"),
                columns=_names(row, "columns"),
                whole=bool(row.get("whole", False)),
                about=dict(row.get("about", {})),
                encoder=None if row.get("encoder") is None else dict(row["encoder"]),
                zero_based=bool(row.get("zero_based", False)),
                objects=str(row.get("objects", "")),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"no form of samples: {error!r}") from None
        if not math.isfinite(form.scale):
            raise ValueError(f"no form of samples: scale is {form.scale}")
        if form.names is not None and len(form.names) != form.classes:
            raise ValueError(f"no form of samples: {len(form.names)} names of {form.classes} classes")
        return form

    def difference(self, other: SampleForm) -> str:
        """The first difference, with this form's value and the other's; "" where there is none."""
        for name, words in _WORDS.items():
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                return f"{words} {_short(here)}, not {_short(there)}"
        for name in sorted({*self.about, *other.about}):
            here, there = self.about.get(name), other.about.get(name)
            if here != there:
                return f"what is said about {_short(name)} is {_short(here)}, not {_short(there)}"
        return ""


def _check_names(value: object) -> None:
    """Raise TypeError where a mapping, at any depth, has a name that is no text: JSON would make it one."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"must be a mapping of names, which are texts, and {_short(name)} is none")
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for part in parts:
        _check_names(part)


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no whole number from 0")
    return value


def _names(row: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    names = row[name]
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ValueError(f"{name} are no list of texts")
    return tuple(names)


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
