"""The delays file: in which order the fetches and pushes of many replicas take effect at the shards.

An .npz file of four NumPy arrays, read without pickle:

kind      (E,) uint8: what happens, a `Happening`
replica   (E,) int32: the replica that it happens to, from 0; -1 for ROUND
replicas  int64: number of replicas
strategy  text: downpour, elastic or rounds

Time is not in it: the order alone decides what is trained. A training that needs more events goes on at the first one
after the last; so each replica begins with a FETCH.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from dbelief.errors import DataError
from dbelief.process.atomic_file import write_whole

DOWNPOUR, ELASTIC, ROUNDS = "downpour", "elastic", "rounds"
STRATEGIES = (DOWNPOUR, ELASTIC, ROUNDS)
"""Kinds of strategies by what a push is: a gradient, an exchange of weights, or a part of a round."""
MOST_REPLICAS = 1 << 24
"""Bound of the number of replicas of a file."""
_AT_ONCE = 1 << 16
_TYPES = {"kind": np.uint8, "replica": np.int32, "replicas": np.int64}


class Happening(IntEnum):
    """What happens."""

    FETCH = 0
    """The replica takes the present parameters."""
    PUSH = 1
    """What it has computed since its last push is applied."""
    LOST = 2
    """Its state, and what it has not pushed, are gone; its next event is a FETCH."""
    ROUND = 3
    """A round ends: the outer step, with the pushes since the last ROUND."""


FETCH, PUSH, LOST, ROUND = Happening


@dataclass(frozen=True, eq=False)
class DelayTrace:
    """The events of a delays file.

    Attributes
    ----------
    kind, replica
        (E,) uint8 and (E,) int32, as in the file; E is at least 1.

    Raises
    ------
    DataError
        They cannot happen in this order; names the event, counted from 0, and the reason.
    """

    strategy: str
    replicas: int
    kind: np.ndarray
    replica: np.ndarray

    def __post_init__(self) -> None:
        self._check_head()
        self._check_each()
        self._check_order()

    @classmethod
    def read(cls, path: Path) -> DelayTrace:
        """Read a file.

        Raises
        ------
        DataError
            It is missing, or is no delays file; names the file and what is wrong there.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:  # np.load of other files
            raise DataError(f"{path}: is no .npz file of plain arrays ({' '.join(str(error).split())})") from None
        try:
            strategy, replicas = _head_of(arrays)
            return cls(strategy, replicas, arrays["kind"], arrays["replica"])
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def write(self, path: Path) -> None:
        """Write the file; raises WriteFailed where that cannot be done, and an existing file is unchanged then."""
        content = io.BytesIO()
        replicas, strategy = np.int64(self.replicas), np.str_(self.strategy)
        np.savez_compressed(content, kind=self.kind, replica=self.replica, replicas=replicas, strategy=strategy)
        write_whole(path, content.getvalue())

    def __len__(self) -> int:
        return len(self.kind)

    def events(self) -> Iterator[tuple[int, int]]:
        """Kind and replica of all events, once."""
        for first in range(0, len(self), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            yield from zip(self.kind[some].tolist(), self.replica[some].tolist(), strict=True)

    @cached_property
    def pushes(self) -> int:
        """Number of pushes."""
        return int(np.count_nonzero(self.kind == PUSH))

    # -- checks ------------------------------------------------------------------------------------------

    def _check_head(self) -> None:
        if self.strategy not in STRATEGIES:
            raise DataError(f"strategy is {self.strategy!r}, must be one of {', '.join(STRATEGIES)}")
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise DataError(f"replicas is {self.replicas}, must be from 1 to {MOST_REPLICAS:,}")
        for name, array in (("kind", self.kind), ("replica", self.replica)):
            if array.dtype != _TYPES[name] or array.ndim != 1:
                wanted = np.dtype(_TYPES[name])
                raise DataError(f"{name} is {array.dtype} of shape {array.shape}, must be {wanted} of one axis")
        if len(self.kind) != len(self.replica):
            raise DataError(f"kind has {len(self.kind):,} events, and replica {len(self.replica):,}")
        if not len(self.kind):
            raise DataError("kind has no events")
        if not self.pushes:
            raise DataError("kind has no PUSH: nothing would be trained")

    def _check_each(self) -> None:
        of_rounds = self.kind == ROUND
        unknown = self.kind > ROUND
        outside = np.where(of_rounds, self.replica != -1, (self.replica < 0) | (self.replica >= self.replicas))
        self._refuse(unknown, lambda at: f"kind is {self.kind[at]}, must be 0 to {ROUND.value}")
        self._refuse(
            outside,
            lambda at: (
                f"replica is {self.replica[at]}, must be "
                + ("-1 for a ROUND" if of_rounds[at] else f"0 to {self.replicas - 1}")
            ),
        )
        if self.strategy != ROUNDS:
            self._refuse(of_rounds, lambda at: f"is a ROUND, and strategy is {self.strategy}, which has none")
        elif not of_rounds.any():
            raise DataError("kind has no ROUND, and strategy is rounds: no push would be applied")

    def _check_order(self) -> None:
        """Check each replica's own events: they begin with a FETCH, and after LOST, with one again."""
        own = np.flatnonzero(self.kind != ROUND)
        own = own[np.argsort(self.replica[own], kind="stable")]
        kind, replica = self.kind[own], self.replica[own]
        before = np.full(len(own), LOST, np.uint8)  # as if each had been lost before its first event
        same = replica[1:] == replica[:-1]
        before[1:][same] = kind[:-1][same]
        begins = np.ones(len(own), bool)
        begins[1:] = ~same
        wrong = np.zeros(len(self), bool)
        wrong[own] = (before == LOST) & (kind != FETCH)
        if self.strategy == ROUNDS:
            wrong[own] |= (before == PUSH) & (kind == PUSH)
        if not wrong.any():
            return
        began = np.zeros(len(self), bool)
        began[own] = begins
        previous = np.zeros(len(self), np.uint8)
        previous[own] = before

        def reason(at: int) -> str:
            what = f"is a {Happening(int(self.kind[at])).name} of replica {self.replica[at]}"
            if began[at]:
                return f"{what}, which has never fetched"
            since = "was lost" if previous[at] == LOST else "pushed"
            return f"{what}, which has not fetched since it {since}"

        self._refuse(wrong, reason)

    @staticmethod
    def _refuse(wrong: np.ndarray, reason: Callable[[int], str]) -> None:
        """Raise DataError with the reason for the first event that is wrong, if any is."""
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(f"event {at} {reason(at)}")


def _head_of(arrays: dict[str, np.ndarray]) -> tuple[str, int]:
    """Strategy and number of replicas of a file that has all four arrays."""
    names = ("kind", "replica", "replicas", "strategy")
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"has no {missing[0]}; a delays file has {', '.join(names)}")
    if unknown := sorted(arrays.keys() - set(names)):
        raise DataError(f"has {unknown[0]!r}; a delays file has {', '.join(names)}, and no more")
    replicas, strategy = arrays["replicas"], arrays["strategy"]
    if replicas.shape or not np.issubdtype(replicas.dtype, np.integer):
        raise DataError(f"replicas is {replicas.dtype} of shape {replicas.shape}, must be one whole number")
    if strategy.shape or strategy.dtype.kind != "U":
        raise DataError(f"strategy is {strategy.dtype} of shape {strategy.shape}, must be text")
    return str(strategy), int(replicas)
