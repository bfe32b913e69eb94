"""Training of leases in lockstep with the other workers of a group, which exchange among themselves.

A group is connected once, and kept until it changes. On joining, a worker that has made the last step sends its result
to those that have not. If all workers have made fewer steps than the shards include, all start from the shards. After
the last step of a block of leases, rank 0 writes the result to the shards.

When a worker fails, no further sum completes: this worker reports how many steps it has made, and requests a new group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import PushStats
from dbelief.errors import RankFailure, Unavailable
from dbelief.nn import Batch
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.phases import PhaseTimer

from ..comm import Communicator
from ..comm.tracing import ReceiveStats, TracingEngine
from ..pipeline.batches import BatchSource
from ..rendezvous import GroupSpec, Rendezvous
from .group_methods import GroupMethod


@dataclass(frozen=True)
class ShardAccess:
    """Shard operations of a group: read the parameters, and replace them."""

    read: Callable[[np.ndarray], None]
    write: Callable[[np.ndarray], None]


@dataclass(frozen=True)
class RankTraffic:
    """Data that the sums received from each rank in this generation, and the number of steps made."""

    group: GroupSpec
    steps: int
    taken: Mapping[int, ReceiveStats]

    def to_wire(self) -> wire.Traffic:
        """Message for the coordinator."""
        rows = [wire.PeerTraffic(rank=rank, **asdict(taken)) for rank, taken in sorted(self.taken.items())]
        generation, rank, ranks = self.group.generation, self.group.rank, self.group.size
        return wire.Traffic(generation=generation, rank=rank, ranks=ranks, steps=self.steps, received=rows)


class GroupTrainer:
    """One worker of successive groups.

    Attributes
    ----------
    steps
        Number of steps of the last block that the group has made.

    Parameters
    ----------
    batches
        Returns the mini-batch for (epoch, start, stop) of an epoch's permutation.
    rate
        Learning rate by samples leased before; the same in all workers.
    acknowledged
        Called for each mini-batch of this worker's lease when its step is complete.
    """

    def __init__(
        self,
        method: GroupMethod,
        rendezvous: Rendezvous,
        shards: ShardAccess,
        batches: BatchSource,
        cadence: FetchPushSchedule,
        rate: Callable[[int], float],
        phases: PhaseTimer,
        acknowledged: Callable[[PushStats], None],
    ) -> None:
        self.rendezvous = rendezvous
        self._method, self._shards, self._batches = method, shards, batches
        self._cadence, self._rate, self._phases = cadence, rate, phases
        self._acknowledged = acknowledged
        self.steps = 0
        self._at = -1  # steps included in the result; -1: there is no result
        self._traced: TracingEngine | None = None
        self._made_here = 0  # steps in this generation

    def train(self, lease: DataLease, group: GroupSpec) -> str:
        """Make the steps of a block of leases, one of which is this worker's.

        Returns
        -------
        str
            "", or the reason why the group failed before the last step.

        Raises
        ------
        NonFinite
            Gradients or weights are not finite; names the tensor.
        RuntimeFailure
            The shards cannot be reached, or reject a request.
        """
        batch = self._cadence.batch
        self.steps, last = 0, None
        self._batches.expect(lease.epoch, lease.start, lease.stop)
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
            self.rendezvous.leave(error)
            self._phases.end("wait")
            return str(error)
        except BaseException as error:  # release the other workers, whose sums cannot complete
            self.rendezvous.leave(error)
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
        """Report a step; the worker that writes to the shards defers its last step until it has written."""
        position = min((step + 1) * self._cadence.batch, lease.samples)
        done = PushStats(lease=lease.id, position=position, samples=len(mine), steps=1, loss_sum=loss * len(mine))
        if writes and step == self._cadence.steps(lease.samples) - 1:
            return done
        self._acknowledged(done)
        return None

    def _meet(self, group: GroupSpec, clock: int) -> None:
        """Connect the group, and synchronize the result of the last step."""
        comm, new = self.rendezvous.join(group)
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
            received = [np.empty_like(array) for array in arrays]  # copy only after all arrived: the sender may fail
            for array in received:
                comm.recv(array, source)
            for array, new in zip(arrays, received, strict=True):
                array[:] = new
        self._method.take(most - self._at if self._at >= 0 else None)

    def traffic(self, group: GroupSpec) -> RankTraffic | None:
        """Traffic of the sums of this group's steps; None before the first step."""
        return RankTraffic(group, self._made_here, self._traced.taken) if self._traced and self._made_here else None

    def close(self) -> None:
        """Leave the group, stop listening and end the method's threads."""
        self.rendezvous.close()
        self._method.close()


def _between(samples: tuple[int, ...], begin: int, count: int) -> int:
    """Total number of samples at positions `begin` up to `begin + count` of leases of these lengths."""
    return sum(max(0, min(one, begin + count) - begin) for one in samples)
