"""Programs over named vectors: the coordinator's operations on vectors that it never holds.

A program is a list of operations that run in order, all or nothing; only scalars are returned. Every executor checks it
completely before it changes a number: `validate` is that check, the same for vectors in one process and on shards.

    copy d s          d = s
    lincomb d x ...; c ...   d = c1 x1 + c2 x2 + ...
    dots a b ...      -> a . b for each pair
    norm1 a           -> |a|_1
    pseudo d w g; c   d = pseudo-gradient at w of c |w|_1 and a loss whose gradient is g
    opposed d v       d = 0 where its sign is not that of -v
    orthant d w v     d = 0 where its sign is not that of w, or where w is 0, of -v

The last four may exempt ranges of the flat vector: no term of the norm, no penalty in the pseudo-gradient, which is g
there, and no number of d that becomes 0.

Source: DistBelief section 4.2 and its appendix, which name a small set of operations that L-BFGS needs; `dots` and
`lincomb` do many at once, for a command costs a round trip (Chen, Wang, Zhou 2014). The last three are the equations of
OWL-QN (Andrew and Gao 2007, section 3).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dbelief.core.absent import Ranges, checked
from dbelief.errors import Rejected


@dataclass(frozen=True)
class Operation:
    """One step of a program: its name, the vectors in the order of its definition, the factors, and exempt ranges."""

    name: str
    vectors: tuple[str, ...]
    scalars: tuple[float, ...] = ()
    exempt: Ranges = ()

    def __str__(self) -> str:
        factors = f"; {', '.join(f'{c:g}' for c in self.scalars)}" if self.scalars else ""
        return f"{self.name} {' '.join(self.vectors)}{factors}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Vectors whose numbers it reads."""
        kind = _KINDS[self.name]
        return self.vectors if kind.read_too else self.vectors[kind.written :]

    @property
    def writes(self) -> tuple[str, ...]:
        """Vectors whose numbers it changes."""
        return self.vectors[: _KINDS[self.name].written]

    @property
    def answers(self) -> int:
        """Number of scalars that it returns."""
        return len(self.vectors) // 2 if self.name == "dots" else int(self.name == "norm1")


class _Signature(NamedTuple):
    vectors: range
    """Permitted numbers of vectors."""
    scalars: int | None
    """None: one for each vector of a linear combination."""
    written: int
    """How many of the vectors it changes; it reads the others."""
    exempts: bool = False
    """Whether ranges may be exempt."""
    read_too: bool = False
    """Whether it reads what it changes."""


_MANY = 1 << 16
_KINDS = {
    "copy": _Signature(range(2, 3), 0, 1),
    "lincomb": _Signature(range(2, _MANY), None, 1),
    "dots": _Signature(range(2, _MANY, 2), 0, 0),
    "norm1": _Signature(range(1, 2), 0, 0, exempts=True),
    "pseudo": _Signature(range(3, 4), 1, 1, exempts=True),
    "opposed": _Signature(range(2, 3), 0, 1, exempts=True, read_too=True),
    "orthant": _Signature(range(3, 4), 0, 1, exempts=True, read_too=True),
}


def copy(d: str, s: str) -> Operation:
    """`d = s`."""
    return Operation("copy", (d, s))


def lincomb(d: str, *terms: tuple[float, str]) -> Operation:
    """`d = c1 x1 + c2 x2 + ...`; `d` may be among the terms."""
    return Operation("lincomb", (d, *(name for _, name in terms)), tuple(c for c, _ in terms))


def dots(*pairs: tuple[str, str]) -> Operation:
    """`a . b` for each pair."""
    return Operation("dots", tuple(name for pair in pairs for name in pair))


def norm1(a: str, exempt: Ranges = ()) -> Operation:
    """`|a|_1`."""
    return Operation("norm1", (a,), (), exempt)


def pseudo(d: str, w: str, g: str, c: float, exempt: Ranges = ()) -> Operation:
    """`d = ` the pseudo-gradient at `w` of `c |w|_1` and a loss whose gradient is `g`."""
    return Operation("pseudo", (d, w, g), (c,), exempt)


def opposed(d: str, v: str, exempt: Ranges = ()) -> Operation:
    """`d = 0` where its sign is not that of `-v`."""
    return Operation("opposed", (d, v), (), exempt)


def orthant(d: str, w: str, v: str, exempt: Ranges = ()) -> Operation:
    """`d = 0` where its sign is not that of `w`, or where `w` is 0, of `-v`."""
    return Operation("orthant", (d, w, v), (), exempt)


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
        known |= set(operation.writes)


def together(program: Sequence[Operation], parts: Sequence[Sequence[float]]) -> list[float]:
    """Add the scalars of several ranges of the vectors, in the order of `parts`; 0 where there are none.

    Python's `sum` adds floats in one way up to 3.11 and in another from 3.12 on; this is one way everywhere.
    """
    columns = zip(*parts, strict=True) if parts else ((),) * sum(operation.answers for operation in program)
    return [functools.reduce(operator.add, column, 0.0) for column in columns]


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
    if operation.exempt:
        if not kind.exempts:
            return "exempts nothing"
        try:
            checked(operation.exempt)
        except ValueError as error:
            return str(error)
    if missing := [name for name in operation.reads if name not in known]:
        return f"reads {missing[0]!r}, which holds nothing"
    return ""
