"""In-memory registry: same behaviour, no server, and not persistent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dbelief.errors import Rejected
from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime

from .registry import check_job, check_ttl, check_values, stale


@dataclass
class _Lease:
    owner: str
    epoch: int
    until_s: float


@dataclass
class _Record:
    highest_epoch: int = 0
    lease: _Lease | None = None
    values: dict[str, bytes] = field(default_factory=dict)


class MemoryRegistry:
    """A `Registry` inside one process; coordinators that compete for a job share the object.

    Parameters
    ----------
    clock
        Clock of the leases.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._lock = runtime.lock()

    def acquire(self, job: str, owner: str, ttl_s: float) -> int | None:
        """Acquire the leader lease; see `Registry.acquire`."""
        length_s = check_ttl(ttl_s) / 1000
        with self._lock:
            record = self._record(job)
            if record.lease is not None and record.lease.owner != owner:
                return None
            record.highest_epoch += 1
            record.lease = _Lease(owner, record.highest_epoch, self._clock.now() + length_s)
            return record.highest_epoch

    def holder(self, job: str) -> tuple[str, float] | None:
        """Owner and remaining seconds; see `Registry.holder`."""
        with self._lock:
            lease = self._record(job).lease
            return None if lease is None else (lease.owner, lease.until_s - self._clock.now())

    def renew(self, job: str, epoch: int, ttl_s: float) -> bool:
        """Extend the lease; see `Registry.renew`."""
        length_s = check_ttl(ttl_s) / 1000
        with self._lock:
            lease = self._record(job).lease
            if lease is None or lease.epoch != epoch:
                return False
            lease.until_s = self._clock.now() + length_s
            return True

    def write(self, job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        """Store all values or none; see `Registry.write`."""
        check_values(values)
        with self._lock:
            record = self._record(job)
            leader = None if record.lease is None else record.lease.epoch
            if leader != epoch:
                raise Rejected(stale(job, epoch, leader))
            for name, value in values.items():
                if value is None:
                    record.values.pop(name, None)
                else:
                    record.values[name] = value

    def read(self, job: str) -> dict[str, bytes]:
        """All values stored for the job; see `Registry.read`."""
        with self._lock:
            return dict(self._record(job).values)

    def raise_epoch(self, job: str, at_least: int) -> None:
        """Make later epochs higher than `at_least`; see `Registry.raise_epoch`."""
        with self._lock:
            record = self._record(job)
            record.highest_epoch = max(record.highest_epoch, at_least)

    def release(self, job: str, epoch: int) -> None:
        """Release the lease; see `Registry.release`."""
        with self._lock:
            record = self._record(job)
            if record.lease is not None and record.lease.epoch == epoch:
                record.lease = None

    def close(self) -> None:
        """No operation: the object may be shared, and keeps its values."""

    def _record(self, job: str) -> _Record:
        """The job's record, without an expired lease; called with the lock held."""
        record = self._records.setdefault(check_job(job), _Record())
        if record.lease is not None and record.lease.until_s <= self._clock.now():
            record.lease = None
        return record
