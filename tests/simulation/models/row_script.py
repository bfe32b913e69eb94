"""The script of simulated jobs with tables: it reads rows and pushes their gradients, as `dbelief.torch.Sync` does.

It has the same membership, sampler, session, client and reader of rows as a module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease
from dbelief.core.placement import Fetch
from dbelief.core.push import PARAMETERS, Push
from dbelief.process.runtime import Event
from dbelief.script.drawn import DrawnBatch
from dbelief.script.membership import Membership
from dbelief.script.one_ahead import one_ahead
from dbelief.script.progress import PushedSteps
from dbelief.script.sampler import LeasedBatchSampler
from dbelief.sparse.row_gradients import packed_gradients
from dbelief.sparse.table_reader import TableReader
from dbelief.training.initial_values import HeldTensors, InitialValues
from dbelief.training.session import OwnModel

from .marks import LENGTH, ROWS, SAMPLES, counts, mark, marker
from .rows import SimulatedTable

BATCH = 4
_DIGEST = hashlib.sha256(b"marks").hexdigest()


class RowScript:
    """One incarnation of the script.

    Parameters
    ----------
    interrupted
        Set by a signal: it leaves after the step.
    """

    def __init__(self, member: Membership, tables: tuple[SimulatedTable, ...], interrupted: Event) -> None:
        self._member, self._tables, self._interrupted = member, tables, interrupted
        tensors = counts.parameters(np.random.default_rng(0))
        layout = Layout.of(tensors)
        initial = InitialValues(layout, lambda: HeldTensors(layout, tensors))
        self._session = session = member.open(OwnModel(initial, _DIGEST))
        self._parameters, self._clock, self._steps = session.parameters, 0, 0
        self._values, self._gradient = (session.parameters.array(layout.size) for _ in range(2))
        placement = session.parameters.placement
        self._versions = np.full(len(placement.spans), -1, np.int64)
        self._reader = TableReader.of_job(member.job, session.parameters, placement.dense, self._versions)
        session.caches = self._reader.caches
        self._fetch(0)
        member.before_compute = self._before_compute

    def run(self) -> None:
        """Train until the job is over."""
        member = self._member
        batches = LeasedBatchSampler(range(SAMPLES), BATCH, member.data.train, member.job.seed, member)
        pairs: Iterable[tuple[list[int], list[int] | None]] = ((batch, None) for batch in batches)
        if any(own.ahead for own in self._tables):
            pairs = one_ahead(batches)
        for indices, following in pairs:
            self._step(np.array(indices), None if following is None else np.array(following))
            if self._interrupted.is_set():
                return

    def _fetch(self, clock: int) -> None:
        self._parameters.pull(self._values, self._versions, clock=clock)
        self._clock = self._reader.clock = clock

    def _before_compute(self, batch: DrawnBatch) -> None:
        clock = self._clock_of(batch.lease, batch.stop)
        if clock > self._clock or self._member.waited:
            self._fetch(clock)
        self._member.waited = False

    def _clock_of(self, lease: DataLease, position: int) -> int:
        batch = self._member.lockstep
        return lease.clock + (-(-position // batch) - 1) * lease.stride if batch else 0

    def _step(self, samples: np.ndarray, following: np.ndarray | None) -> None:
        member, session, process = self._member, self._session, marker.process()
        self._read(samples, following, process)
        marker.compute(samples)
        mark(self._gradient.reshape(ROWS, LENGTH), samples, process)
        rows = {own.name: own.pushed(samples, process, self._steps) for own in self._tables}
        self._steps += 1
        stepped, after = member.drawn.step(len(samples)), member.drawn.next()
        clock = self._clock_of(stepped.lease, stepped.position)
        next_clock = self._clock_of(after.lease, after.stop) if after else clock + bool(member.lockstep)
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
        marker.pushed(push, rows)
        packed = packed_gradients({name: [made] for name, made in rows.items()}, self._reader)
        fetch = Fetch(self._values, self._versions, next_clock)
        pushed = self._parameters.push(self._gradient, self._versions.copy(), push, fetch, rows=packed)
        self._clock = next_clock
        self._reader.stepped(next_clock)
        member.reports.acknowledged(PushedSteps(push.row, len(samples), 1, float(len(samples))), pushed)
        if after is not None:
            self._before_compute(after)

    def _read(self, samples: np.ndarray, following: np.ndarray | None, process: int) -> None:
        """Read the rows of a mini-batch, and begin to pull those of the next one."""
        reader = self._reader
        alone = [own for own in self._tables if own.ahead or own.name in reader.caches]
        if following is not None:
            for own in (own for own in alone if own.ahead):
                reader.prefetch(reader.table(own.name), own.read(following, process))
        reader.read_all({own.name: own.read(samples, process) for own in self._tables if own not in alone})
        for own in alone:
            reader.read(reader.table(own.name), own.read(samples, process))
