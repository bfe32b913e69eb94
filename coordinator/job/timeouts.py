"""Timeouts on missing members, and the text of what a job waits for. No clock: time is an argument."""

from __future__ import annotations

from ..core.members import Members
from ..core.states import State


class JoinTimeouts:
    """Join timeouts of one job.

    Parameters
    ----------
    join_s
        Seconds that members may be missing.
    replicas
        Planned number of replicas.
    resumes
        Whether the job resumes from a snapshot set.

    Attributes
    ----------
    shard_lost
        Description of how the last lost shard ended, for display.
    """

    def __init__(self, members: Members, join_s: float, replicas: int, resumes: bool) -> None:
        self._members = members
        self._join_s = join_s
        self._replicas = replicas
        self._resumes = resumes
        self.shard_lost = ""
        self._someone_s: float | None = None
        self._complete_s: float | None = None

    def waiting_for(self, state: State, begins: bool) -> str:
        """Members or actions that a job waits for; `begins`: it starts in lockstep, and needs all replicas."""
        shards, replicas = self._shards(), len(self._members.alive("replica"))
        if shards < len(self._members.needed):
            return f"shards ({shards} of {len(self._members.needed)} joined)"
        if not self._members.alive("replica", "client"):
            return "a replica to join"
        if state is State.INITIALISING:
            return "the snapshot set to load" if self._resumes else "initial values"
        if begins and replicas < self._replicas:
            return f"replicas ({replicas} of {self._replicas} joined)"
        return ""

    def expired_reason(self, state: State, begins: bool, needs_replica: bool, now_s: float) -> str:
        """Reason to fail the job, "" while no timeout has expired; to be called regularly.

        Parameters
        ----------
        needs_replica
            Whether any work is left that needs a replica.
        """
        someone = bool(self._members.alive("replica", "client"))
        few = begins and len(self._members.alive("replica")) < self._replicas
        shards = self._shards() == len(self._members.needed)
        complete = state is not State.EMPTY and shards and not (state is State.READY and few)
        if self._someone_s is None or someone or not needs_replica:
            self._someone_s = now_s
        if self._complete_s is None or complete:
            self._complete_s = now_s
        if now_s - self._complete_s > self._join_s:
            why = f"; {self.shard_lost}" if self.shard_lost and not shards else ""
            return f"waited {self._join_s:g} s for {self.waiting_for(state, begins)}{why}"
        if now_s - self._someone_s > self._join_s:
            return f"no replica for {self._join_s:g} s; waiting for: {self.waiting_for(state, begins)}"
        return ""

    def _shards(self) -> int:
        """Number of shards alive among those that the job needs."""
        return sum(member.number in self._members.needed for member in self._members.alive("shard"))
