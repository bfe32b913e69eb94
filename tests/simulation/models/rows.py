"""Rows of tables in simulated jobs: their keys and gradients, and the script that reads and pushes them.

Each sample has a key in each table, which it shares with others where there are fewer keys than samples, and each
process has one. A gradient has whole numbers: how many samples of the mini-batch have the key, and one more in each
further number of the row. The script does what `dbelief.torch.Sync` does for a module, with the same membership,
sampler, session and client. Before each mini-batch it also reads a key that no push has.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease
from dbelief.core.placement import Fetch
from dbelief.core.push import PARAMETERS, Push
from dbelief.process.runtime import Event
from dbelief.script.drawn import DrawnBatch
from dbelief.script.membership import Membership
from dbelief.script.progress import PushedSteps
from dbelief.script.sampler import LeasedBatchSampler
from dbelief.sparse.table import number_tables, pack
from dbelief.training.initial_values import HeldTensors, InitialValues
from dbelief.training.session import OwnModel

from .marks import LENGTH, ROWS, SAMPLES, Rows, counts, mark, marker

BATCH = 4
_OF_PROCESS, _UNUSED = 10_000, 20_000
"""Numbers of the first key of a process, and of the first key that is read and never pushed."""
_SPREAD = 0x9E3779B97F4A7C15
_DIGEST = hashlib.sha256(b"marks").hexdigest()


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
    """

    name: str
    width: int
    buckets: int
    rule: str
    init: str
    keys: int
    push: str = "fp32"

    @property
    def section(self) -> str:
        """Its line in the job file."""
        form = f"width: {self.width}, rule: {self.rule}, init: {self.init}, buckets: {self.buckets}, push: {self.push}"
        return f"{self.name}: {{{form}}}"

    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of all samples, and how many samples have each."""
        numbers, often = np.unique(np.arange(SAMPLES) % self.keys, return_counts=True)
        return _keys(numbers), often

    def read(self, samples: np.ndarray) -> np.ndarray:
        """Keys that are read for a mini-batch."""
        return _keys(np.append(np.unique(samples % self.keys), _UNUSED + samples[0]))

    def pushed(self, samples: np.ndarray, process: int) -> Rows:
        """Keys of a mini-batch that a process computes, and their gradients."""
        numbers, often = np.unique(np.append(samples % self.keys, _OF_PROCESS + process), return_counts=True)
        often[-1] = len(samples)
        return _keys(numbers), (often[:, None] + np.arange(self.width)).astype(np.float32)


def _keys(numbers: np.ndarray) -> np.ndarray:
    """int64 keys of numbers, spread over all 64 bits."""
    keys: np.ndarray = (numbers.astype(np.uint64) * np.uint64(_SPREAD)).view(np.int64)
    return keys


class RowScript:
    """One incarnation of the script.

    Parameters
    ----------
    interrupted
        Set by a signal: it leaves after the step.
    """

    def __init__(self, member: Membership, tables: tuple[SimulatedTable, ...], interrupted: Event) -> None:
        self._member, self._interrupted = member, interrupted
        tensors = counts.parameters(np.random.default_rng(0))
        layout = Layout.of(tensors)
        initial = InitialValues(layout, lambda: HeldTensors(layout, tensors))
        self._session = session = member.open(OwnModel(initial, _DIGEST))
        self._parameters, self._clock = session.parameters, 0
        self._values, self._gradient = (session.parameters.array(layout.size) for _ in range(2))
        self._versions = np.full(len(session.parameters.placement.spans), -1, np.int64)
        numbered = number_tables(member.job.tables, member.job.seed, session.parameters.placement.dense)
        self._tables = dict(zip(tables, numbered, strict=True))
        self._fetch(0)
        member.before_compute = self._before_compute

    def run(self) -> None:
        """Train until the job is over."""
        member = self._member
        for indices in LeasedBatchSampler(range(SAMPLES), BATCH, member.data.train, member.job.seed, member):
            self._step(np.array(indices))
            if self._interrupted.is_set():
                return

    def _fetch(self, clock: int) -> None:
        self._parameters.pull(self._values, self._versions, clock=clock)
        self._clock = clock

    def _before_compute(self, batch: DrawnBatch) -> None:
        clock = self._clock_of(batch.lease, batch.stop)
        if clock > self._clock or self._member.waited:
            self._fetch(clock)
        self._member.waited = False

    def _clock_of(self, lease: DataLease, position: int) -> int:
        batch = self._member.lockstep
        return lease.clock + (-(-position // batch) - 1) * lease.stride if batch else 0

    def _step(self, samples: np.ndarray) -> None:
        member, session = self._member, self._session
        wanted = {table: own.read(samples) for own, table in self._tables.items()}
        self._parameters.pull_rows(wanted, self._versions, self._clock)
        marker.compute(samples)
        mark(self._gradient.reshape(ROWS, LENGTH), samples, marker.process())
        rows = {own: own.pushed(samples, marker.process()) for own in self._tables}
        stepped = member.drawn.step(len(samples))
        clock = self._clock_of(stepped.lease, stepped.position)
        session.sequences[PARAMETERS] = session.next_sequence()
        push = Push(
            session.pusher,
            session.sequences[PARAMETERS],
            np.float32(1),
            len(samples),
            clock=clock,
            lease=stepped.lease.id,
            position=stepped.position,
        )
        marker.pushed(push, {own.name: made for own, made in rows.items()})
        sent, next_clock = self._versions.copy(), clock + bool(member.lockstep)
        fetch = Fetch(self._values, self._versions, next_clock)
        pushed = self._parameters.push(self._gradient, sent, push, fetch, rows=self._packed(rows))
        self._clock = next_clock
        member.reports.acknowledged(PushedSteps(push.row, len(samples), 1, float(len(samples))), pushed)

    def _packed(self, rows: dict[SimulatedTable, Rows]) -> dict[int, np.ndarray]:
        """Packed rows by bucket."""
        packed: dict[int, np.ndarray] = {}
        for own, (keys, gradients) in rows.items():
            order, parts = self._tables[own].split(keys)
            packed |= {index: pack(keys[order[part]], gradients[order[part]]) for index, part in parts}
        return packed
