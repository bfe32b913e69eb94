"""Where one job stands, what it is made of, and how it closes or fails. No clock, no socket, no file."""

from __future__ import annotations

from functools import partial
from typing import Any

from dbelief.job import Job
from dbelief.layout import Layout
from dbelief.placement import Placement

from .actions import Action, Finish, Note
from .chains import Chains
from .closing import Ending
from .continuation import Continuation
from .members import Member, Members
from .opening import Opening
from .patience import Patience
from .recovery import Recovery
from .states import Shape, State
from .training import Training


class Standing:
    """A job between events.

    Parameters
    ----------
    job
        The job file.
    shape
        Sizes of its data sets; zeros where it has no data.
    resume
        Id, shards' ledgers aside, of the snapshot set to go on from, with the state that set.json holds.
    first_shard_epoch
        Lowest shard epoch that may be given out: one above all that registry and set know.

    Raises
    ------
    Mistake
        Where the set to go on from was made of other data.
    """

    def __init__(
        self,
        job: Job,
        shape: Shape,
        resume: tuple[str, dict[str, Any]] | None = None,
        first_shard_epoch: int = 1,
    ) -> None:
        self.job = job
        self.shape = shape
        self.state = State.EMPTY
        self.reason = ""
        self.actions: list[Action] = []
        self.members = Members(job.deadlines.beat_s, job.shards, job.replication, _lease_s(job))
        self.chains = Chains(job.replication, self.members)
        self.training = Training(job, shape)
        self.total = self.training.total
        self.leases = self.training.leases
        self.progress = self.training.progress
        self.opening = Opening(job.shards, resume[1] if resume else None, shape.train)
        self.ending = Ending(shape, self.progress, self.training.evaluations)
        self.continuation = Continuation(self.opening, self.members, self.training)
        self.recovery = Recovery(self.opening, self.members, self.training, resume[0] if resume else None)
        self.patience = Patience(self.members, job.deadlines.join_s, job.shards, job.replicas, resume is not None)
        self.shard_epoch = first_shard_epoch
        self.died: list[str] = []
        self.commit_due = True
        self.finished = False
        self.resumes = resume is not None
        self._resume = resume
        if resume is not None:
            self.continuation.begin(*resume)

    @property
    def layout(self) -> Layout | None:
        """The model's layout, once a replica told it."""
        return self.opening.layout

    @property
    def placement(self) -> Placement | None:
        """Where segments live, once all shards are there."""
        return self.opening.placement

    @property
    def pushes_twice(self) -> int:
        """How many pushes were trained twice because of deaths."""
        return self.training.pushes_twice

    @property
    def members_lost(self) -> int:
        """How many lives of members ended without a goodbye."""
        return len(self.died)

    @property
    def best_at_end(self) -> str:
        """The named vector that is the job's result."""
        return self.ending.vector

    @property
    def over(self) -> bool:
        """Done or failed."""
        return self.state in (State.DONE, State.FAILED)

    def close(self, reason: str, evaluate: bool = True) -> None:
        """End as planned: finish what is leased, evaluate, snapshot, export."""
        if self.state is State.READY:
            self.ending.evaluate = evaluate
            self._become(State.CLOSING, reason)

    def fail(self, reason: str) -> None:
        """End now, with a reason."""
        if not self.over:
            self._become(State.FAILED, reason)
            self.actions.append(Finish())

    def waiting_for(self) -> str:
        """What a job that does not train waits for."""
        return self.patience.waiting_for(self.state, self.training.begins_in_lockstep)

    def set_state(self) -> dict[str, Any]:
        """What set.json holds beside the shards' manifests; taken when all shards have written theirs."""
        return self.continuation.state(self.shard_epoch)

    # -- shards and those that follow --------------------------------------------------------------------

    def member(self, kind: str, number: int, incarnation: int) -> Member | None:
        """This very life, where it is alive; of kind "shard" also one that follows."""
        is_server = kind == "shard"
        return (self.members.server if is_server else partial(self.members.find, kind))(number, incarnation)

    def _server_gone(self, member: Member, how: str, reason: str) -> None:
        """A shard, or one that follows, is over."""
        if member.kind == "follower":
            self.actions += self.chains.follower_gone(member)
            return
        self.patience.shard_lost = f"{member.title} at {member.address} {how}: {reason}"
        if self.placement is None:
            return
        heir = self.chains.leader_gone(member)
        self.recovery.gone(member.number, kept=heir is not None)
        self.ending.again()
        if heir is not None:
            self.actions.append(self.recovery.revive(heir, self._next_epoch(), promoted=True))

    def _next_epoch(self) -> int:
        self.shard_epoch += 1
        return self.shard_epoch

    def chain_told(self, shard: int, epoch: int, followed: bool, unfollowed: str) -> None:
        """A shard tells how it stands with its follower, or `unfollowed` is why it has none."""
        if not self.over:
            news = list(self.chains.told(shard, epoch, followed, unfollowed))
            self.commit_due = self.commit_due or bool(news)
            self.actions += news

    # -- telling -----------------------------------------------------------------------------------------

    def _become(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason or self.reason
        self._note("state", state=state.value, reason=reason)

    def _note(self, event: str, **fields: Any) -> None:
        self.commit_due = self.commit_due or event != "progress"
        self.actions.append(Note(event, fields))

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
        """Samples trained over the size of the training set."""
        return self.progress.samples / self.shape.train if self.shape.train else 0.0


def _lease_s(job: Job) -> float:
    return job.deadlines.lease_s if job.replication > 1 else job.deadlines.beat_s
