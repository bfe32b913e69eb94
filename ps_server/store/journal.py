"""Journal records: changes of a segment, as a shard sends them to its follower. Independent of the wire format.

A record is appended with the segment's lock held, and has the version that the segment had before the change: a
follower checks by it that it lacks no record. `replication/apply.py` applies the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from dbelief.core.push import Push
from dbelief.core.vector_program import Operation


@dataclass(frozen=True)
class PushRecord:
    """Journal record of one segment of a push or of an exchange.

    Attributes
    ----------
    index, version
        Of the segment, before the change.
    push
        With the rate that it was applied at.
    offset, values
        See `Shard.push`; unchanged until the push is acknowledged, or its client has left the memory to the shard.
    form
        Encoded form of the values, where they were encoded: an object of the wire layer.
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
        """Bytes of the record's numbers."""
        return self.values.nbytes

    def owned(self) -> Self:
        """The record with numbers that it may keep beyond the push: a message's are read-only; of others a copy."""
        return replace(self, values=self.values.copy()) if self.values.flags.writeable else self


@dataclass(frozen=True)
class _WithoutNumbers:
    """Base of journal records without numbers."""

    index: int
    version: int
    nbytes: ClassVar[int] = 0

    def owned(self) -> Self:
        """The record itself."""
        return self


@dataclass(frozen=True)
class RoundRecord(_WithoutNumbers):
    """Journal record: the due round was applied with the gradients that were staged."""


@dataclass(frozen=True)
class DropStagedRecord(_WithoutNumbers):
    """Journal record: the staged gradients of these incarnations were dropped."""

    incarnations: frozenset[int]


@dataclass(frozen=True)
class ForgetRecord(_WithoutNumbers):
    """Journal record: the ledger rows of these permanently fenced incarnations were dropped."""

    incarnations: frozenset[int]


@dataclass(frozen=True)
class ProgramRecord(_WithoutNumbers):
    """Journal record: a program over the named vectors was run."""

    program: Sequence[Operation]


JournalRecord = PushRecord | RoundRecord | DropStagedRecord | ForgetRecord | ProgramRecord
