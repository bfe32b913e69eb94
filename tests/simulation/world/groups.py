"""Groups of workers without sockets: a `Rendezvous` whose group is in memory."""

from __future__ import annotations

from contextlib import nullcontext

from dbelief.errors import RankFailure, Unavailable
from dbelief.process.runtime import Event, runtime
from worker.comm import Communicator
from worker.comm.threads import Group, ThreadEngine
from worker.rendezvous import GroupSpec

from .scheduler import Process, Scheduler


class ProcessGroup(Group):
    """A group whose ranks are processes: none is preempted within a copy, where its end would leave the other waiting.

    The ranks for which `Group` is made are threads of one process, which end together.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._lock = nullcontext()  # type: ignore[assignment]


class _Meeting:
    def __init__(self, size: int) -> None:
        self.group = ProcessGroup(size)
        self.processes: dict[int, Process] = {}
        self.complete: Event = runtime.event()


class Groups:
    """All groups of a simulation, by run and generation."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._meetings: dict[tuple[int, int], _Meeting] = {}
        self._addresses = 0

    def address(self) -> str:
        """A new address of a worker."""
        self._addresses += 1
        return f"127.0.0.1:{20_000 + self._addresses}"

    def join(self, run_id: int, group: GroupSpec, deadline_s: float) -> ThreadEngine:
        """Wait until all workers of a group have joined it."""
        meeting = self._meetings.setdefault((run_id, group.generation), _Meeting(group.size))
        assert self.scheduler.current is not None
        meeting.processes[group.rank] = self.scheduler.current.process
        if len(meeting.processes) == group.size:
            meeting.complete.set()
        if not meeting.complete.wait(deadline_s):
            missing = sorted(set(range(group.size)) - set(meeting.processes))
            raise Unavailable(f"rank {missing[0]} of group {group.generation} did not connect in {deadline_s:g} s")
        return ThreadEngine(meeting.group, group.rank)

    def ended(self, process: Process) -> None:
        """A process has ended: its groups fail."""
        for meeting in self._meetings.values():
            for rank, member in meeting.processes.items():
                if member is process:
                    meeting.group.fail(f"rank {rank}", RankFailure("its connection is closed"))


class SimulatedRendezvous:
    """See `worker.rendezvous.Rendezvous`."""

    def __init__(self, groups: Groups, deadline_s: float) -> None:
        self._groups = groups
        self.address = groups.address()
        self.run_id = 0
        self._deadline_s = deadline_s
        self._comm: Communicator | None = None
        self._generation = self._over = 0

    def join(self, group: GroupSpec) -> tuple[Communicator, bool]:
        if self._comm is not None and self._generation == group.generation:
            return self._comm, False
        self.leave()
        engine = self._groups.join(self.run_id, group, self._deadline_s)
        self._comm, self._generation = Communicator(engine, self._deadline_s), group.generation
        self.invalidate(self._over)
        return self._comm, True

    def invalidate(self, generation: int) -> None:
        self._over = max(self._over, generation)
        if self._comm is not None and self._generation <= self._over:
            self._comm.abort(RankFailure(f"generation {self._generation} of the group has lost a member"))

    def leave(self, error: BaseException | None = None) -> None:
        comm, self._comm = self._comm, None
        if comm is not None:
            if error is not None:
                comm.abort(error)
            comm.close()

    def close(self) -> None:
        self.leave()
