"""Programs over named vectors: the coordinator's operations on vectors that it never holds.

A program is a list of operations that run in order, all or nothing; only scalars are returned. Every executor checks it
completely before it changes a number: `validate` is that check, the same for vectors in one process and on shards.

    zero d            d = 0
    copy d s          d = s
    scale d; c        d = c d
    axpy y x; c       y = y + c x
    mul d a b         d = a b, elementwise
    norm1 v           -> sum of |v|
    maxabs v          -> largest |v|
    dots a b ...      -> a . b for each pair
    lincomb d x ...; c ...   d = c1 x1 + c2 x2 + ...
    rotate v0 ... vn  vn becomes v0, v0 becomes v1, and so on: names are permuted, numbers stay

Source: DistBelief section 4.2 and its appendix, which name a small set of operations that L-BFGS needs; `dots` and
`lincomb` do many at once, for a command costs a round trip (Chen, Wang, Zhou 2014).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dbelief.errors import Rejected


@dataclass(frozen=True)
class Operation:
    """One step of a program: its name, the vectors in the order of its definition, and the factors."""

    name: str
    vectors: tuple[str, ...]
    scalars: tuple[float, ...] = ()

    def __str__(self) -> str:
        factors = f"; {', '.join(f'{c:g}' for c in self.scalars)}" if self.scalars else ""
        return f"{self.name} {' '.join(self.vectors)}{factors}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Vectors whose numbers it reads."""
        return _KINDS[self.name].reads(self.vectors)

    @property
    def writes(self) -> tuple[str, ...]:
        """Vectors whose numbers it changes."""
        return _KINDS[self.name].writes(self.vectors)

    @property
    def answers(self) -> int:
        """Number of scalars that it returns."""
        return len(self.vectors) // 2 if self.name == "dots" else int(self.name in ("norm1", "maxabs"))

    @property
    def sums(self) -> bool:
        """Whether the scalars of several ranges are added; else the largest is the result."""
        return self.name != "maxabs"


class _Signature(NamedTuple):
    vectors: range
    """Permitted numbers of vectors."""
    scalars: int | None
    """None: one for each vector of a linear combination."""
    written: slice
    read: slice

    def reads(self, vectors: tuple[str, ...]) -> tuple[str, ...]:
        return vectors[self.read]

    def writes(self, vectors: tuple[str, ...]) -> tuple[str, ...]:
        return vectors[self.written]


_MANY = 1 << 16
_ALL, _NONE, _FIRST, _REST = slice(None), slice(0), slice(1), slice(1, None)
_KINDS = {
    "zero": _Signature(range(1, 2), 0, _FIRST, _NONE),
    "copy": _Signature(range(2, 3), 0, _FIRST, _REST),
    "scale": _Signature(range(1, 2), 1, _FIRST, _ALL),
    "axpy": _Signature(range(2, 3), 1, _FIRST, _ALL),
    "mul": _Signature(range(3, 4), 0, _FIRST, _REST),
    "norm1": _Signature(range(1, 2), 0, _NONE, _ALL),
    "maxabs": _Signature(range(1, 2), 0, _NONE, _ALL),
    "dots": _Signature(range(2, _MANY, 2), 0, _NONE, _ALL),
    "lincomb": _Signature(range(2, _MANY), None, _FIRST, _REST),
    "rotate": _Signature(range(2, _MANY), 0, _NONE, _NONE),
}


def zero(d: str) -> Operation:
    """`d = 0`."""
    return Operation("zero", (d,))


def copy(d: str, s: str) -> Operation:
    """`d = s`."""
    return Operation("copy", (d, s))


def lincomb(d: str, *terms: tuple[float, str]) -> Operation:
    """`d = c1 x1 + c2 x2 + ...`; `d` may be among the terms."""
    return Operation("lincomb", (d, *(name for _, name in terms)), tuple(c for c, _ in terms))


def dots(*pairs: tuple[str, str]) -> Operation:
    """`a . b` for each pair."""
    return Operation("dots", tuple(name for pair in pairs for name in pair))


def rotate(*names: str) -> Operation:
    """Rename cyclically: the last name's vector becomes the first's, each other the next one's."""
    return Operation("rotate", names)


def validate(program: Sequence[Operation], held: Collection[str]) -> None:
    """Check a program against its operations' definitions and the existing vectors.

    Parameters
    ----------
    held
        Names of the vectors that hold numbers before the program.

    Raises
    ------
    Rejected
        Names the operation by its position, from 1.
    """
    known = set(held)
    for number, operation in enumerate(program, 1):
        if trouble := _trouble(operation, known):
            raise Rejected(f"operation {number}, {operation}: {trouble}")
        if operation.name == "rotate":
            moved = dict(zip(operation.vectors, operation.vectors[-1:] + operation.vectors[:-1], strict=True))
            there = {name for name, before in moved.items() if before in known}
            known = known - set(operation.vectors) | there
        known |= set(operation.writes)


def together(program: Sequence[Operation], parts: Sequence[Sequence[float]]) -> list[float]:
    """Combine the scalars of several ranges of the vectors, in the order of `parts`; 0 where there are none.

    Python's `sum` adds floats in one way up to 3.11 and in another from 3.12 on; this is one way everywhere.
    """
    adds = [operation.sums for operation in program for _ in range(operation.answers)]
    columns = zip(*parts, strict=True) if parts else ((),) * len(adds)
    return [
        functools.reduce(operator.add if added else _larger, column, 0.0)
        for added, column in zip(adds, columns, strict=True)
    ]


def _larger(one: float, other: float) -> float:
    """The larger of two numbers; NaN where one of them is."""
    return other if other > one or math.isnan(other) else one


def _trouble(operation: Operation, known: set[str]) -> str:
    kind = _KINDS.get(operation.name)
    if kind is None:
        return f"there is no such operation; there are {', '.join(_KINDS)}"
    if len(operation.vectors) not in kind.vectors:
        return f"{len(operation.vectors)} vectors are not what it takes"
    scalars = len(operation.vectors) - 1 if kind.scalars is None else kind.scalars
    if len(operation.scalars) != scalars:
        return f"takes {scalars} factors, got {len(operation.scalars)}"
    if not all(map(math.isfinite, operation.scalars)):
        return "a factor is not finite"
    if operation.name == "rotate" and len(set(operation.vectors)) < len(operation.vectors):
        return "a name stands there twice"
    if missing := [name for name in kind.reads(operation.vectors) if name not in known]:
        return f"reads {missing[0]!r}, which holds nothing"
    return ""
