"""One fault of a simulation, and the moments and processes that faults are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.models.jobs import EPOCHS
from tests.simulation.models.marks import SAMPLES

BATCHES = 160
"""Mini-batches during which most faults begin; a fifth begin before the first, and a fifth at the end of the job."""
LEFT = 2
"""Mini-batches that are left when the end of a job begins."""
LAST = EPOCHS * SAMPLES // 4 - LEFT
NEAR_END = 4
"""Mini-batches before that which belong to the end, too."""
END_S = 1.5
"""Seconds after the last mini-batches in which a job tests, writes a set and the model, and ends."""
MACHINES = ("leader-0", "leader-1", "shard-0", "shard-1", "shard-2", "shard-3", "worker-0", "worker-1", "worker-2")
FEWEST = 3
"""Faults that have an effect in every seed."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    kind
        A name of `KINDS`. kill: SIGKILL; fail: power loss of its machine; both: SIGKILL
        of a shard's leader and follower; pause: SIGSTOP, and SIGCONT later; cut: a
        link; break: all connections of a link; slow: the network; full: the disk; away: the registry does not answer;
        outage: power loss of all machines, then all programs start again;
        wall: a jump of the wall clock; scale: another number of shards; signal: SIGTERM.
    batches, after_s
        It begins so many seconds after this number of mini-batches was computed.
    target, other
        Names of processes; "leader-N": the one that serves shard N, "follower-N": its follower, "coordinator": the one
        that leads. Of an outage: whether the registry's content is "kept" or "lost".
    seconds
        How long it lasts, or until the process starts again.
    both
        Of a cut: in both directions.
    method
        Where it is not "": the fault begins when the next message of this method arrives after that moment, at the two
        ends of its call. Where none arrives for `AWAITED` mini-batches, it begins then, at its targets.
    client
        Of a fault at a message: whether the client of the call is the target and the server the other one, else the
        server is the target.
    late
        Of a fault at a message: whether the message has been delivered when it begins, else it is lost with its call,
        or delayed with its link.
    until
        Of a pause: it ends when a message of this method arrives, `seconds` after its beginning or later.
    spare
        Whether it begins only where fewer than `FEWEST` faults have had an effect.
    """

    kind: str
    batches: int
    after_s: float
    target: str
    other: str = ""
    seconds: float = 0.0
    both: bool = True
    method: str = ""
    client: bool = False
    late: bool = False
    until: str = ""
    spare: bool = False

    def __str__(self) -> str:
        target, other = self.target, self.other
        when = ""
        if self.method:
            when = f"{'after' if self.late else 'before'} the next message of {self.method}, "
            target, other = ("client", other and "server") if self.client else ("server", other and "client")
        parts = [f"{self.kind} {target}"]
        if other:
            parts.append(f"{'and' if self.both else 'towards'} {other}")
        moment = f"at mini-batch {self.batches} + {1000 * self.after_s:.1f} ms"
        until = f" and until a message of {self.until}" if self.until else ""
        spare = ", if few faults had an effect" if self.spare else ""
        return f"{moment}: {when}{' '.join(parts)}, {self.seconds:.3f} s{until}{spare}"
