"""How long a job waits for members, and what it says it waits for. No clock: time is an argument."""

from __future__ import annotations

from ..core.members import Members
from ..core.states import State


class JoinTimeouts:
    """The patience of one job.

    Parameters
    ----------
    join_s
        How long members may be missing.
    replicas
        How many the job plans.
    resumes
        Whether it goes on from a snapshot set.

    Attributes
    ----------
    shard_lost
        How the last shard that is gone ended, for people.
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
        """The members, or their doing, that a job waits for; `begins`: in lockstep, and not without all replicas."""
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
        """The reason to give up, "" while there is patience; to be asked again and again.

        Parameters
        ----------
        needs_replica
            Whether there is anything left that a replica has to do.
        """
        waiting = self.waiting_for(state, begins)
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
            return f"waited {self._join_s:g} s for {waiting}{why}"
        if now_s - self._someone_s > self._join_s:
            return f"no replica for {self._join_s:g} s; waiting for: {waiting}"
        return ""

    def _shards(self) -> int:
        """How many shards are there of those without whom the job cannot go on."""
        return sum(member.number in self._members.needed for member in self._members.alive("shard"))
