"""State and components of one job, and how it closes or fails. No clock, no socket, no file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dbelief.core.layout import Layout
from dbelief.core.placement import Placement
from dbelief.job import Job

from ..cluster.initialization import Initialization
from ..cluster.recovery import Recovery
from ..cluster.replication import ReplicationManager
from ..cluster.resharding import Resharding
from ..core.effects import Action, FinishRun, LogEvent
from ..core.members import Members
from ..core.states import DatasetSizes, State
from ..scheduling.training import Training
from .shutdown import Shutdown
from .snapshot_state import SnapshotState
from .timeouts import JoinTimeouts


class Standing(ABC):
    """A job between events.

    Parameters
    ----------
    job
        The job file.
    shape
        Sizes of its data sets; zeros where it has no data.
    resume
        Snapshot set to resume from: its id, and the state in its set.json (without the shards' ledgers).
    first_shard_epoch
        Lowest shard epoch that may be issued: above all epochs in registry and set.
    run_id
        Random id of this run of the job: new where the job is started anew or resumed, unchanged by coordinator
        failover. Members send it, and those of an earlier run are rejected: a resumed job cannot know which
        incarnations that run issued after its last snapshot set. 0: no id, and members send none.

    Raises
    ------
    UserError
        The set to resume from was made from other data.
    """

    def __init__(
        self,
        job: Job,
        shape: DatasetSizes,
        resume: tuple[str, dict[str, Any]] | None = None,
        first_shard_epoch: int = 1,
        run_id: int = 0,
    ) -> None:
        self.job = job
        self.shape = shape
        self.state = State.EMPTY
        self.reason = ""
        self.actions: list[Action] = []
        self.members = Members(job.deadlines.beat_s, set(range(job.shards)), job.replication, _lease_s(job))
        self.chains = ReplicationManager(job.replication, self.members)
        self.training = Training(job, shape)
        self.total = self.training.total
        self.leases = self.training.leases
        self.progress = self.training.progress
        self.opening = Initialization(job.shards, resume[1] if resume else None, shape.train, run_id)
        self.ending = Shutdown(shape, self.progress, self.training.evaluations)
        self.continuation = SnapshotState(self.opening, self.members, self.training)
        self.recovery = Recovery(self.opening, self.members, self.training, resume[0] if resume else None)
        self.resizing = Resharding(job, self.opening, self.members, self.recovery, self.next_shard_epoch)
        self.patience = JoinTimeouts(self.members, job.deadlines.join_s, job.replicas, resume is not None)
        self.shard_epoch = first_shard_epoch
        self.died: list[str] = []
        self.commit_due = True
        self.finished = False
        self.resumes = resume is not None
        # Wall time in seconds before the resume, as stored in the set.
        self.legs_s: float = resume[1].get("wall_s", 0.0) if resume is not None else 0.0
        self._resume = resume
        if resume is not None:
            self.continuation.begin(*resume)

    @property
    def run_id(self) -> int:
        """Id of this run of the job."""
        return self.opening.run_id

    @property
    def layout(self) -> Layout | None:
        """The model's layout, once a replica has sent it."""
        return self.opening.layout

    @property
    def placement(self) -> Placement | None:
        """Segment placement, once all shards have joined."""
        return self.opening.placement

    @property
    def pushes_twice(self) -> int:
        """Number of pushes trained twice because of failures."""
        return self.training.pushes_twice

    @property
    def members_lost(self) -> int:
        """Number of member incarnations that ended without leaving."""
        return len(self.died)

    @property
    def best_at_end(self) -> str:
        """The named vector that is the job's result."""
        return self.ending.vector

    @property
    def over(self) -> bool:
        """Whether the job is done or failed."""
        return self.state in (State.DONE, State.FAILED)

    def close(self, reason: str, evaluate: bool = True) -> None:
        """End as planned: finish what is leased, evaluate, snapshot, export."""
        if self.state is State.READY:
            self.ending.evaluate = evaluate
            self._become(State.CLOSING, reason)

    def fail(self, reason: str) -> None:
        """End the job now, with a reason."""
        if not self.over:
            self._become(State.FAILED, reason)
            self.actions.append(FinishRun())

    def waiting_for(self) -> str:
        """What the job waits for before it trains, or for the resharding in progress; "" for nothing."""
        waits = self.patience.waiting_for(self.state, self.training.begins_in_lockstep)
        return waits or (self.resizing.waiting_for() if self.state is State.READY else "")

    def next_shard_epoch(self) -> int:
        """A shard epoch that no incarnation of a shard has had."""
        self.shard_epoch += 1
        return self.shard_epoch

    def set_state(self) -> dict[str, Any]:
        """Contents of set.json beside the shards' manifests; read when all shards have written theirs."""
        return self.continuation.state(self.shard_epoch)

    @abstractmethod
    def _advance(self, now_s: float) -> None:
        """Do what is due after an event."""

    # -- logging -----------------------------------------------------------------------------------------

    def _become(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason or self.reason
        self._note("state", state=state.value, reason=reason)

    def _note(self, event: str, **fields: Any) -> None:
        self.commit_due = self.commit_due or event != "progress"
        self.actions.append(LogEvent(event, fields))

    def _note_progress(self) -> None:
        p = self.progress
        self._note(
            "progress",
            samples=p.samples,
            epoch=self.epoch,
            loss=p.loss,
            staleness=p.staleness,
            members=len(self.members.alive("replica", "client")),
        )

    @property
    def epoch(self) -> float:
        """Trained samples divided by the size of the training set."""
        return self.progress.samples / self.shape.train if self.shape.train else 0.0


def _lease_s(job: Job) -> float:
    return job.deadlines.lease_s if job.replication > 1 else job.deadlines.beat_s
