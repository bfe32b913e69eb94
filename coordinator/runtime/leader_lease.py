"""Leader lease of a job: acquisition, renewal, durable state, and retries while the registry is unavailable.

A coordinator that was paused may find its lease expired. If no other coordinator has led meanwhile, it reacquires the
lease under a new epoch. Otherwise it is deposed, and must exit without changing anything.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping

from dbelief.errors import DbeliefError, Rejected, Unavailable
from dbelief.process.clock import Clock
from dbelief.process.console import announce
from dbelief.registry import Registry

LEASE_TTL_S = 10.0
REGISTRY_S = 60.0
"""Seconds that the registry may be unavailable; a commit is retried for this long."""
_AGAIN_S = 0.2
_LOOK_S = 1.0


class LeaderLease:
    """Leadership of one job, from `acquire` to `release`.

    Attributes
    ----------
    epoch
        Epoch of this leadership; rises when an expired lease is reacquired.
    lost
        Why this process is no longer leader; "" while it is.
    """

    def __init__(self, registry: Registry, job: str, owner: str, epoch: int, clock: Clock) -> None:
        self.epoch = epoch
        self.lost = ""
        self._registry = registry
        self._job = job
        self._owner = owner
        self._clock = clock
        self._written: dict[str, bytes] = {}
        self._step = 0  # the last one that is persisted
        self._committing = threading.Lock()
        self._regaining = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_loop, name="leader-lease", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls, registry: Registry, job: str, owner: str, clock: Clock, interrupted: threading.Event
    ) -> LeaderLease | None:
        """Acquire the lease; stand by, with a message, while another holds it. None where `interrupted` was set."""
        told = ""
        while not interrupted.is_set():
            epoch = registry.acquire(job, owner, LEASE_TTL_S)
            if epoch is not None:
                return cls(registry, job, owner, epoch, clock)
            holder = registry.holder(job)
            if holder is not None and holder[0] != told:
                told = holder[0]
                announce(f"job {job} is led by {told}; standing by to take over when it ends or falls silent")
            clock.wait(interrupted, _LOOK_S)
        return None

    def read_state(self) -> dict[str, bytes]:
        """State persisted by an earlier leader; empty where there was none."""
        return self._registry.read(self._job)

    def commit(self, sections: Callable[[], tuple[int, Mapping[str, str]]], step: int) -> None:
        """Persist the current state; it is durable when this returns.

        Parameters
        ----------
        sections
            Returns the number of the last step that the state includes, and the state by name. It is called under the
            commit lock, so that no older state is written after it. Unchanged sections are not written again.
        step
            The step that must be included. Concurrent callers are served by one write.

        Raises
        ------
        Unavailable
            The registry was unavailable for `REGISTRY_S`.
        Rejected
            Another coordinator leads.
        """
        with self._committing:
            if step <= self._step:
                return
            last, texts = sections()
            state = {name: text.encode() for name, text in texts.items()}
            while True:
                epoch, changed = self.epoch, {n: v for n, v in state.items() if self._written.get(n) != v}
                if changed:
                    self._persist(functools.partial(self._write, changed))
                if self.epoch == epoch:
                    self._written, self._step = state, last
                    return
                # The lease had expired meanwhile: which earlier writes the registry still holds is unknown.

    def _write(self, changed: Mapping[str, bytes]) -> None:
        self._registry.write(self._job, self.epoch, {**changed, "leader": str(self.epoch).encode()})

    def release(self) -> None:
        """Release the lease; if the registry cannot be reached, it expires by itself."""
        self._ended.set()
        self._thread.join()
        if not self.lost:
            try:
                self._registry.release(self._job, self.epoch)
            except DbeliefError as error:
                announce(f"the leader lease was not given back, and runs out in {LEASE_TTL_S:g} s: {error}")

    # -- registry outages ------------------------------------------------------------------------------

    def _persist(self, call: Callable[[], None]) -> None:
        """Retry a call while the registry is unavailable; a rejected call is repeated once, with a new lease."""
        away_since_s: float | None = None
        while True:
            try:
                try:
                    call()
                except Rejected:
                    self._reacquire()
                    call()
            except Unavailable as error:
                now_s = self._clock.now()
                if away_since_s is None:
                    away_since_s = now_s
                    announce(f"{error}; waiting up to {REGISTRY_S:g} s for it")
                elif now_s - away_since_s > REGISTRY_S:
                    raise
                self._clock.wait(self._ended, _AGAIN_S)
                continue
            if away_since_s is not None:
                announce(f"the registry is back after {self._clock.now() - away_since_s:.1f} s")
            return

    def _renew_loop(self) -> None:
        while not self._clock.wait(self._ended, LEASE_TTL_S / 3):
            try:
                self._persist(self._renew)
            except DbeliefError as error:
                self.lost = self.lost or str(error)
                return

    def _renew(self) -> None:
        if not self._registry.renew(self._job, self.epoch, LEASE_TTL_S):
            self._reacquire()

    def _reacquire(self) -> None:
        """Acquire the lease again after it expired, unless another coordinator has led meanwhile.

        Raises
        ------
        Rejected
            Another coordinator has led.
        """
        with self._regaining:
            if self.lost:
                raise Rejected(self.lost)
            if self._registry.renew(self._job, self.epoch, LEASE_TTL_S):
                return  # another thread was faster
            self._registry.raise_epoch(self._job, self.epoch)  # it may have restarted without its state
            epoch = self._registry.acquire(self._job, self._owner, LEASE_TTL_S)
            last = self._registry.read(self._job).get("leader", str(self.epoch).encode())
            if epoch is None or int(last) != self.epoch:
                self.lost = f"another coordinator leads job {self._job} now"
                if epoch is not None:
                    self._registry.release(self._job, epoch)
                raise Rejected(self.lost)
            self._registry.write(self._job, epoch, {"leader": str(epoch).encode()})
            announce(f"the leader lease had run out; leading again, under epoch {epoch}")
            self.epoch = epoch
            self._written = {}  # a restarted registry may hold older state than was written
