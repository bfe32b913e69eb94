"""Trains leases in step with the other workers of a group, which exchange among themselves.

A group is met once, and kept until it changes. Those of it who have made the last step give what came of it to those
who have not; where all have made fewer than the shards hold, all begin with that. After the last step of a block of
leases the first worker writes the result to the shards.

When somebody fails, no sum comes any more: this worker says how many steps it has made, and asks for another group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.errors import RankFailure, Unavailable
from dbelief.nn import Batch
from dbelief.rpc import coordination_pb2 as wire

from ..comm import Communicator
from ..comm.tracing import ReceiveStats, TracingEngine
from ..pipeline.buffers import PushStats
from ..rendezvous import GroupSpec, Rendezvous
from .downpour import PhaseTimer
from .group_methods import GroupMethod


@dataclass(frozen=True)
class ShardAccess:
    """What is asked of the shards: to read the parameters, and to replace them."""

    read: Callable[[np.ndarray], None]
    write: Callable[[np.ndarray], None]


@dataclass(frozen=True)
class Traffic:
    """What sums took from other ranks since this generation began, by rank, and how many steps were made."""

    group: GroupSpec
    steps: int
    taken: Mapping[int, ReceiveStats]

    def to_wire(self) -> wire.Traffic:
        """As the coordinator is told of it."""
        rows = [wire.Taken(rank=rank, **asdict(taken)) for rank, taken in sorted(self.taken.items())]
        generation, rank, ranks = self.group.generation, self.group.rank, self.group.size
        return wire.Traffic(generation=generation, rank=rank, ranks=ranks, steps=self.steps, taken=rows)


class GroupTrainer:
    """One worker of its groups.

    Attributes
    ----------
    steps
        That the group has made of the last block.

    Parameters
    ----------
    batches
        Gives the mini-batch for (epoch, start, stop) of an epoch's permutation.
    rate
        Learning rate by samples leased before; the same in all workers.
    acknowledged
        Called for each mini-batch of this worker's lease when the step that it is in is made.
    """

    def __init__(
        self,
        method: GroupMethod,
        meeting: Rendezvous,
        shards: ShardAccess,
        batches: Callable[[int, int, int], Batch],
        cadence: FetchPushSchedule,
        rate: Callable[[int], float],
        phases: PhaseTimer,
        acknowledged: Callable[[PushStats], None],
    ) -> None:
        self.meeting = meeting
        self._method, self._shards, self._batches = method, shards, batches
        self._cadence, self._rate, self._phases = cadence, rate, phases
        self._acknowledged = acknowledged
        self.steps = 0
        self._at = -1  # steps that the result holds; -1: there is none
        self._traced: TracingEngine | None = None
        self._made_here = 0  # steps in this generation

    def train(self, lease: DataLease, group: GroupSpec) -> str:
        """Make the steps of a block of leases, of which one is this worker's.

        Returns
        -------
        str
            "", or why there could be no more steps.

        Raises
        ------
        NotFinite
            Gradients or weights are not finite; names the tensor.
        Failure
            Shards cannot be reached or refuse.
        """
        batch = self._cadence.batch
        self.steps, last = 0, None
        try:
            self._meet(group, lease.clock)
            for step in range(self._cadence.steps(max(group.samples))):
                mine = self._mini_batch(lease, step)
                share = min(batch, lease.samples - step * batch) / _between(group.samples, step * batch, batch)
                rate = self._rate(group.samples_before + _between(group.samples, 0, step * batch))
                loss = self._method.step(mine, share, rate, lambda: self._phases.end("compute"))
                self._phases.end("push")
                self._at += 1
                self.steps = step + 1
                self._made_here += 1
                if mine is not None:
                    last = self._acknowledge_step(lease, step, mine, loss, writes=group.rank == 0)
        except (RankFailure, Unavailable) as error:
            self.meeting.leave(error)
            self._phases.end("wait")
            return str(error)
        except BaseException as error:  # the others are not to wait for what does not come
            self.meeting.leave(error)
            raise
        if group.rank == 0:
            self._shards.write(self._method.result)
            self._phases.end("push")
        if last is not None:
            self._acknowledged(last)
        return ""

    def _mini_batch(self, lease: DataLease, step: int) -> Batch | None:
        first = lease.start + step * self._cadence.batch
        stop = min(first + self._cadence.batch, lease.stop)
        mine = self._batches(lease.epoch, first, stop) if first < stop else None
        self._phases.end("data")
        return mine

    def _acknowledge_step(
        self, lease: DataLease, step: int, mine: Batch, loss: float, writes: bool
    ) -> PushStats | None:
        """Tell of a step; but who writes tells of its last one when it has written."""
        done = PushStats(sequence=lease.first_sequence + step, samples=len(mine), steps=1, loss_sum=loss * len(mine))
        if writes and step == self._cadence.steps(lease.samples) - 1:
            return done
        self._acknowledged(done)
        return None

    def _meet(self, group: GroupSpec, clock: int) -> None:
        """Come together, and agree on what the last step has come to."""
        comm, new = self.meeting.join(group)
        if new:
            self._traced, self._made_here = TracingEngine(comm.engine), 0
            self._method.join(Communicator(self._traced, comm.deadline_s))
            self._synchronize_state(comm, group.written)
        self._at = clock
        self._phases.end("wait")

    def _synchronize_state(self, comm: Communicator, written: int) -> None:
        at = np.zeros(comm.size, np.int64)
        at[comm.rank] = self._at
        comm.allreduce(at)
        source, most = int(at.argmax()), int(at.max())
        if most < max(0, written):
            self._shards.read(self._method.result)
            self._method.begin()
            return
        lacking = [rank for rank in range(comm.size) if at[rank] < most]
        arrays = self._method.result, *self._method.state()
        if comm.rank == source:
            for array in arrays:
                for pending in [comm.isend(array, rank) for rank in lacking]:
                    pending.wait()
        elif comm.rank in lacking:
            came = [np.empty_like(array) for array in arrays]  # all of it or nothing: who gives it may die meanwhile
            for array in came:
                comm.recv(array, source)
            for array, new in zip(arrays, came, strict=True):
                array[:] = new
        self._method.take(most - self._at if self._at >= 0 else None)

    def traffic(self, group: GroupSpec) -> Traffic | None:
        """What the sums of this group's steps took; None before the first."""
        return Traffic(group, self._made_here, self._traced.taken) if self._traced and self._made_here else None

    def close(self) -> None:
        """Leave the group."""
        self.meeting.close()
        self._method.close()


def _between(samples: tuple[int, ...], begin: int, count: int) -> int:
    """Samples at `begin` up to `begin + count` of leases of so many, over all of them."""
    return sum(max(0, min(one, begin + count) - begin) for one in samples)
