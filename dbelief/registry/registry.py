"""The interface of a registry: the leader lease, the epochs, and what one job's coordinator keeps.

Values are bytes under short names; what they mean is the coordinator's business. Every write is fenced:
it names the leader epoch it was made under, and is refused once another leader may exist. So a coordinator
that was asleep for a while cannot overwrite the work of the one that took over.

An epoch is used once. It comes from a counter per job that only grows, so that shards, which know the
highest epoch they ever saw, can tell an old leader from a new one.
"""

import math
import re
from collections.abc import Mapping
from typing import Protocol

_JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Registry(Protocol):
    """What a coordinator keeps so that another could take over. Safe to call from several threads.

    All methods raise `Unreachable` where the registry does not answer within its deadline, and ValueError
    for a job name, a time or a value that no registry could hold.
    """

    def acquire(self, job: str, owner: str, ttl_s: float) -> int | None:
        """Take the leader lease for `ttl_s` seconds.

        Returns the new leader epoch, 1 + the highest ever used for this job, or None while another owner
        holds the lease (`holder` tells who). An owner that holds it already gets a new epoch, which fences
        its earlier self: a coordinator that is restarted under its own name need not wait.
        """
        ...

    def holder(self, job: str) -> tuple[str, float] | None:
        """Owner of the leader lease and the seconds it has left; None while nobody holds it."""
        ...

    def renew(self, job: str, epoch: int, ttl_s: float) -> bool:
        """Let the lease of `epoch` end `ttl_s` seconds from now; False when that lease is lost."""
        ...

    def write(self, job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        """Store all `values`, or none; a value of None deletes its name.

        Raises
        ------
        Refused
            `epoch` is not (or no longer) the epoch of the leader.
        """
        ...

    def read(self, job: str) -> dict[str, bytes]:
        """Everything stored for the job, by name; empty where there is nothing."""
        ...

    def raise_epoch(self, job: str, at_least: int) -> None:
        """Let every later epoch be above `at_least`, which a shard may know of; never goes back."""
        ...

    def release(self, job: str, epoch: int) -> None:
        """Give the lease of `epoch` back, if it is still held; what was stored stays."""
        ...

    def close(self) -> None:
        """Give connections back; the registry object is not used afterwards. Nothing stored is lost."""
        ...


def check_job(job: str) -> str:
    """Return `job`, or raise ValueError for a name that would not be safe inside a key."""
    if not _JOB.fullmatch(job):
        raise ValueError(f"job name {job!r} must be 1 to 64 letters, digits, '.', '_' or '-'")
    return job


def check_ttl(ttl_s: float) -> int:
    """Return a lease's length in whole milliseconds, at least 1; ValueError where it is no such length."""
    if not (math.isfinite(ttl_s) and ttl_s > 0):
        raise ValueError(f"a lease of {ttl_s} s cannot be given")
    return max(1, round(ttl_s * 1000))


def check_values(values: Mapping[str, bytes | None]) -> None:
    """Raise ValueError for a value that is not bytes or None, before anything is sent."""
    for name, value in values.items():
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"registry value {name!r} must be bytes or None, not {type(value).__name__}")


def stale(job: str, epoch: int, leader: int | None) -> str:
    """The reason a write is refused: under which epoch it came, and who leads by now."""
    now = f"epoch {leader} leads" if leader is not None else "nobody holds the lease"
    return f"registry: job {job}: write under leader epoch {epoch} refused: {now}"
