"""Interface of a registry: the leader lease, the epochs, and the stored state of one job's coordinator.

Values are bytes under short names; only the coordinator interprets them. Every write is fenced: it names the leader
epoch it was made under, and is refused once another leader may exist. So a coordinator that was suspended for a while
cannot overwrite the state of its successor.

An epoch is used once. It comes from a counter per job that only grows, so that shards, which store the highest epoch
they ever received, can distinguish an old leader from a new one.
"""

import math
import re
from collections.abc import Mapping
from typing import Protocol

_JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Registry(Protocol):
    """Store of a coordinator's state for failover. Safe to call from several threads.

    All methods raise `Unavailable` where the registry does not reply within its deadline, and ValueError for an invalid
    job name, time or value.
    """

    def acquire(self, job: str, owner: str, ttl_s: float) -> int | None:
        """Acquire the leader lease for `ttl_s` seconds.

        Returns the new leader epoch, 1 + the highest ever used for this job, or None while another owner holds the
        lease (`holder` returns it). An owner that holds it already gets a new epoch, which fences its earlier
        incarnation: a coordinator that is restarted under its own name need not wait.
        """
        ...

    def holder(self, job: str) -> tuple[str, float] | None:
        """Owner of the leader lease and its remaining seconds; None while it is free."""
        ...

    def renew(self, job: str, epoch: int, ttl_s: float) -> bool:
        """Extend the lease of `epoch` to `ttl_s` seconds from now; False when that lease is lost."""
        ...

    def write(self, job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        """Store all `values`, or none; a value of None deletes its name.

        Raises
        ------
        Rejected
            `epoch` is not (or no longer) the epoch of the leader.
        """
        ...

    def read(self, job: str) -> dict[str, bytes]:
        """All values stored for the job, by name; empty where there are none."""
        ...

    def raise_epoch(self, job: str, at_least: int) -> None:
        """Make every later epoch higher than `at_least`, which a shard may have seen; never decreases."""
        ...

    def release(self, job: str, epoch: int) -> None:
        """Release the lease of `epoch`, if it is still held; stored values are kept."""
        ...

    def close(self) -> None:
        """Close the connections; the registry object is not used afterwards. No stored value is lost."""
        ...


def check_job(job: str) -> str:
    """Return `job`, or raise ValueError for a name that is not safe inside a key."""
    if not _JOB.fullmatch(job):
        raise ValueError(f"job name {job!r} must be 1 to 64 letters, digits, '.', '_' or '-'")
    return job


def check_ttl(ttl_s: float) -> int:
    """Return a lease's length in whole milliseconds, at least 1; ValueError where it is invalid."""
    if not (math.isfinite(ttl_s) and ttl_s > 0):
        raise ValueError(f"a lease of {ttl_s} s cannot be given")
    return max(1, round(ttl_s * 1000))


def check_values(values: Mapping[str, bytes | None]) -> None:
    """Raise ValueError for a value that is not bytes or None, before anything is sent."""
    for name, value in values.items():
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"registry value {name!r} must be bytes or None, not {type(value).__name__}")


def stale(job: str, epoch: int, leader: int | None) -> str:
    """Reason of a refused write: its epoch, and the current leader's."""
    now = f"epoch {leader} leads" if leader is not None else "no coordinator holds the lease"
    return f"registry: job {job}: write under leader epoch {epoch} refused: {now}"
