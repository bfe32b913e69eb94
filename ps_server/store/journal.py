"""What is done to a segment, as a shard tells it to the one that follows. It knows no wire.

A deed is told with the segment's lock held, and has the version that the segment had before: by that index a follower
sees that it lacks none. `follow.py` does them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dbelief.core.push import Push
from dbelief.core.vector_program import Operation


def owned_copy(values: np.ndarray) -> np.ndarray:
    """Numbers as a deed may keep them: a message's are nobody's to change, and of others a copy.

    A worker that shares memory changes what it has pushed as soon as that is acknowledged, or given up, and a follower
    that is still catching up is not waited for.
    """
    return values.copy() if values.flags.writeable else values


@dataclass(frozen=True)
class PushRecord:
    """A segment of a push, or of an exchange.

    Attributes
    ----------
    index, version
        Of the segment, before.
    push
        With the rate that it was applied by.
    offset, values
        See `Shard.push`; not changed by anybody until the follower has them: see `kept`.
    form
        What the values came as, where they were encoded: an object of the wire's.
    exchange
        Number of the exchange's message that it came in, from 1; 0: it is a push.
    skipped
        Whether it was only counted.
    """

    index: int
    version: int
    push: Push
    values: np.ndarray
    offset: int = 0
    form: Any = None
    exchange: int = 0
    skipped: bool = False

    @property
    def nbytes(self) -> int:
        """Of its numbers."""
        return self.values.nbytes


@dataclass(frozen=True)
class _WithoutNumbers:
    """A deed that tells of no numbers."""

    index: int
    version: int
    nbytes: ClassVar[int] = 0


@dataclass(frozen=True)
class RoundRecord(_WithoutNumbers):
    """The round that was due was applied, as far as it had come."""


@dataclass(frozen=True)
class DropStagedRecord(_WithoutNumbers):
    """What these lives had waiting for rounds was dropped."""

    incarnations: frozenset[int]


@dataclass(frozen=True)
class ForgetRecord(_WithoutNumbers):
    """What was known of these lives, which are over for good, was dropped."""

    incarnations: frozenset[int]


@dataclass(frozen=True)
class ProgramRecord(_WithoutNumbers):
    """A program over the named vectors was run."""

    program: Sequence[Operation]


JournalRecord = PushRecord | RoundRecord | DropStagedRecord | ForgetRecord | ProgramRecord
