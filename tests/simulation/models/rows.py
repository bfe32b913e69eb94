"""Rows of tables in simulated jobs: their keys and gradients.

Each sample has a key in each table, which it shares with others where there are fewer keys than samples, and each
process has one. A gradient has whole numbers: how many samples of the mini-batch have the key, and one more in each
further number of the row. Before each mini-batch a key is read, too, that no push has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .marks import SAMPLES, Rows

_OF_PROCESS, _UNUSED, _OWN = 10_000, 20_000, 30_000
"""Numbers of the first key of a process, of the first key that is read and never pushed, and of those in `own`."""
_MOST_OWN, _SELDOM, _NEW = 1_000, 4, 3
_SPREAD = 0x9E3779B97F4A7C15
_LARGEST = np.array([127.0, 63.5])
"""Of int8 with a scale a row: with such a number in it, a row of whole numbers is sent as it is."""


@dataclass(frozen=True)
class SimulatedTable:
    """One table.

    Attributes
    ----------
    rule, init
        Fields of its section in the job file.
    keys
        Keys of samples.
    push
        Codec of its pushes: gradients are small whole numbers, which 16 bits hold.
    more
        Further fields of its section.
    near
        Whether the key after that of each sample is read, too.
    own
        Keys that each process pushes in its first two steps, and reads in one of `_SELDOM`; later each step has
        `_NEW` more.
    scaled
        Whether the last number of each gradient is that of `_LARGEST`, of odd and even keys in turn.
    ahead
        Whether rows are pulled while the mini-batch before is computed.
    """

    name: str
    width: int
    buckets: int
    rule: str
    init: str
    keys: int
    push: str = "fp32"
    more: str = ""
    near: bool = False
    own: int = 0
    scaled: bool = False
    ahead: bool = False

    @property
    def section(self) -> str:
        """Its line in the job file."""
        form = f"width: {self.width}, rule: {self.rule}, init: {self.init}, buckets: {self.buckets}, push: {self.push}"
        return f"{self.name}: {{{form}{', ' * bool(self.more)}{self.more}}}"

    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of all samples, and how many samples have each."""
        numbers, often = np.unique(np.arange(SAMPLES) % self.keys, return_counts=True)
        return _keys(numbers), often

    def read(self, samples: np.ndarray, process: int) -> np.ndarray:
        """Keys that a process reads for a mini-batch."""
        numbers = samples % self.keys
        near = (numbers + 1) % self.keys if self.near else numbers
        own = self._own(process, 0) if samples[0] % _SELDOM == 0 else numbers[:0]
        return _keys(np.concatenate([np.union1d(numbers, near), [_UNUSED + samples[0]], own]))

    def pushed(self, samples: np.ndarray, process: int, step: int) -> Rows:
        """Keys of a mini-batch that a process computes in this step of its own, and their gradients."""
        numbers, often = np.unique(np.append(samples % self.keys, _OF_PROCESS + process), return_counts=True)
        often[-1] = len(samples)
        own = self._own(process, step)
        numbers, often = np.append(numbers, own), np.append(often, np.ones(own.size, np.int64))
        gradients = (often[:, None] + np.arange(self.width)).astype(np.float32)
        if self.scaled:
            gradients[:, -1] = _LARGEST[numbers % 2]
        return _keys(numbers), gradients

    def _own(self, process: int, step: int) -> np.ndarray:
        """Numbers of the keys of its own that a process pushes in a step."""
        first = _OWN + _MOST_OWN * process
        new = self.own + _NEW * step + np.arange(_NEW if self.own else 0)
        return first + (np.arange(self.own) if step < 2 else new) % _MOST_OWN


def _keys(numbers: np.ndarray) -> np.ndarray:
    """int64 keys of numbers, spread over all 64 bits."""
    keys: np.ndarray = (numbers.astype(np.uint64) * np.uint64(_SPREAD)).view(np.int64)
    return keys
