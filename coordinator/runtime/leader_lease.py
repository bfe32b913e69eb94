"""Leader lease of a job: acquisition, renewal, durable state, and retries while the registry is unavailable.

A coordinator that was paused may find its lease expired. If no other coordinator has led meanwhile, it reacquires the
lease under a new epoch. Otherwise it is deposed, and must exit without changing anything.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping

from dbelief.errors import DbeliefError, Deposed, Rejected, Unavailable
from dbelief.process.clock import Clock
from dbelief.process.runtime import Event, runtime
from dbelief.registry import Registry

log = logging.getLogger(__name__)

LEASE_TTL_S = 10.0
REGISTRY_S = 60.0
"""Seconds that the registry may be unavailable; a commit is retried for this long."""
_RETRY_S = 0.2
_STANDBY_RETRY_S = 1.0


class LeaderLease:
    """Leadership of one job, from `acquire` to `release`.

    Attributes
    ----------
    epoch
        Epoch of this leadership; rises when an expired lease is reacquired.
    lost
        Why this process is no longer leader; "" while it is.
    expires_s
        Until when no other coordinator can lead, by this process's clock: when the last renewal was sent, plus the TTL.
    """

    def __init__(self, registry: Registry, job: str, owner: str, epoch: int, clock: Clock, expires_s: float) -> None:
        self.epoch = epoch
        self.expires_s = expires_s
        self.lost = ""
        self._registry = registry
        self._job = job
        self._owner = owner
        self._clock = clock
        self._written: dict[str, bytes] = {}  # the fields that the registry holds
        self._known_in = 0  # the epoch in which it does; 0: before the first commit, and after one that failed
        self._step = 0  # the last one that is persisted
        self._committing = runtime.lock()
        self._reacquiring = runtime.reentrant_lock()
        self._ended = runtime.event()
        self._thread = runtime.spawn(self._renew_loop, "leader-lease")

    @classmethod
    def acquire(cls, registry: Registry, job: str, owner: str, clock: Clock, interrupted: Event) -> LeaderLease | None:
        """Acquire the lease; stand by, with a message, while another holds it. None where `interrupted` was set.

        A registry that does not answer meanwhile, as while it restarts, is waited for too.
        """
        announced = ""
        while not interrupted.is_set():
            expires_s = clock.now() + LEASE_TTL_S
            try:
                epoch = registry.acquire(job, owner, LEASE_TTL_S)
                if epoch is not None:
                    return cls(registry, job, owner, epoch, clock, expires_s)
                holder = registry.holder(job)
                waits_for = announced
                if holder is not None:
                    waits_for = f"job {job} is led by {holder[0]}; standing by (if it failed, for {LEASE_TTL_S:g} s)"
            except Unavailable as error:
                waits_for = f"{error}; standing by until it does"
            if waits_for != announced:
                announced = waits_for
                log.info(announced)
            clock.wait(interrupted, _STANDBY_RETRY_S)
        return None

    @property
    def certain(self) -> bool:
        """Whether no other coordinator can lead now; False also while the registry is away for longer than the TTL."""
        return not self.lost and self._clock.now() < self.expires_s

    @property
    def released(self) -> bool:
        """Whether `release` was called: commits do not wait for the registry any more."""
        return self._ended.is_set()

    def lose(self, reason: str) -> None:
        """Note that this coordinator leads no more, as was found elsewhere: another one does, or its files are gone."""
        self.lost = self.lost or reason

    def read_state(self) -> dict[str, bytes]:
        """State persisted by an earlier leader; empty where there was none."""
        return self._registry.read(self._job)

    def commit(self, fields: Callable[[bool], tuple[int, Mapping[str, str | None]]], step: int) -> None:
        """Persist the current state; it is durable when this returns. Cost: that of the fields that have changed.

        Parameters
        ----------
        fields
            Returns the number of the last step that the state includes, and the state by field: all fields where it is
            called with True, else those that may have changed since its last call; None: the field is gone. It is
            called under the commit lock, so that no older state is written after it. Unchanged fields are not written
            again.
        step
            The step that must be included. Concurrent callers are served by one write.

        Raises
        ------
        Unavailable
            The registry was unavailable for `REGISTRY_S`.
        Deposed
            Another coordinator leads.
        """
        with self._committing:
            if step <= self._step:
                return
            while True:
                epoch = self.epoch
                complete = self._known_in != epoch
                self._known_in = 0  # also where it raises: the next commit is complete
                last, texts = fields(complete)
                state = {name: text.encode() if text is not None else None for name, text in texts.items()}
                if complete:
                    self._persist(self._read)
                    state = dict.fromkeys(self._written) | state
                changed = {name: value for name, value in state.items() if self._written.get(name) != value}
                if changed:
                    self._persist(functools.partial(self._write, changed))
                if self.epoch == epoch:
                    self._note(changed)
                    self._known_in, self._step = epoch, last
                    return
                # The lease had expired meanwhile: which earlier writes the registry still holds is unknown.

    def _read(self) -> None:
        self._written = self.read_state()
        self._written.pop("leader", None)

    def _write(self, changed: Mapping[str, bytes | None]) -> None:
        self._registry.write(self._job, self.epoch, {**changed, "leader": str(self.epoch).encode()})

    def _note(self, changed: Mapping[str, bytes | None]) -> None:
        """Record what the registry holds now."""
        for name, value in changed.items():
            if value is None:
                del self._written[name]
            else:
                self._written[name] = value

    def confirm(self) -> None:
        """Check that no other coordinator has led the job until now; raises as `commit`. Cost: a registry call."""
        self._persist(self._renew)

    def release(self) -> None:
        """Release the lease; if the registry cannot be reached, it expires by itself."""
        self._ended.set()
        self._thread.join()
        if not self.lost:
            try:
                self._registry.release(self._job, self.epoch)
            except DbeliefError as error:
                log.warning(f"the leader lease could not be released; it expires in {LEASE_TTL_S:g} s: {error}")

    # -- registry outages ------------------------------------------------------------------------------

    def _persist(self, call: Callable[[], None]) -> None:
        """Retry a call while the registry is unavailable; a rejected call is repeated once, with a new lease."""
        down_since_s: float | None = None
        while True:
            try:
                try:
                    call()
                except Rejected:
                    self._reacquire()
                    call()
            except Unavailable as error:
                now_s = self._clock.now()
                if down_since_s is None:
                    down_since_s = now_s
                    log.warning(f"{error}; waiting up to {REGISTRY_S:g} s for it")
                elif now_s - down_since_s > REGISTRY_S:
                    raise
                if self._clock.wait(self._ended, _RETRY_S):
                    raise  # this process ends, and a further wait would not pause
                continue
            if down_since_s is not None:
                log.info(f"the registry is available again after {self._clock.now() - down_since_s:.1f} s")
            return

    def _renew_loop(self) -> None:
        while not self._clock.wait(self._ended, LEASE_TTL_S / 3):
            try:
                self._persist(self._renew)
            except DbeliefError as error:
                if not self._ended.is_set():
                    self.lost = self.lost or str(error)
                return

    def _renew(self) -> None:
        expires_s = self._clock.now() + LEASE_TTL_S
        if not self._registry.renew(self._job, self.epoch, LEASE_TTL_S):
            self._reacquire()
        self.expires_s = expires_s

    def _reacquire(self) -> None:
        """Acquire the lease again after it expired, unless another coordinator has led meanwhile.

        Raises
        ------
        Deposed
            Another coordinator has led.
        """
        with self._reacquiring:
            if self.lost:
                raise Deposed(self.lost)
            if self._registry.renew(self._job, self.epoch, LEASE_TTL_S):
                return  # another thread was faster
            self._registry.raise_epoch(self._job, self.epoch)  # it may have restarted without its state
            epoch = self._registry.acquire(self._job, self._owner, LEASE_TTL_S)
            last = self._registry.read(self._job).get("leader", str(self.epoch).encode())
            if epoch is None or int(last) != self.epoch:
                self.lost = f"another coordinator leads job {self._job} now"
                if epoch is not None:
                    self._registry.release(self._job, epoch)
                raise Deposed(self.lost)
            self._registry.write(self._job, epoch, {"leader": str(epoch).encode()})
            log.warning(f"the leader lease had expired; reacquired under epoch {epoch}")
            self.epoch = epoch  # a restarted registry may hold older state than was written: see `commit`
