"""Who writes below a run's prefix: a store has no locks, so holders are numbered, and the highest number writes.

A holder writes its object again every `BEAT_S`. Whether an earlier one still runs is seen by that alone, so that clocks
of machines need not agree. A number is created once: of two processes that begin at the same time one gets it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from dbelief.errors import Deposed, StorageError, Unavailable, UserError
from dbelief.process.clock import Clock
from dbelief.process.runtime import Thread, runtime
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url

log = logging.getLogger(__name__)

PREFIX = "holders"
BEAT_S = 3.0
SILENT_S = 12.0
"""Time without a beat after which a holder is considered gone, in seconds."""


class Hold:
    """The right to write below a run's prefix; see `acquire`.

    Parameters
    ----------
    number
        Of this holder; see `acquire`.
    run_id
        Of the run: a coordinator that succeeds another one of the same run has the same.
    lost
        Called once with the reason where another process has taken it.
    """

    def __init__(
        self, store: ObjectStore, run: Url, number: int, run_id: int, clock: Clock, lost: Callable[[str], None]
    ) -> None:
        self._store, self._run, self.number, self._run_id = store, run, number, run_id
        self._clock, self._lost = clock, lost
        self._id, self._beats = runtime.random_bytes(8).hex(), 0
        self._ended = runtime.event()
        self._thread: Thread | None = None

    @classmethod
    def acquire(cls, store: ObjectStore, run: Url, run_id: int, clock: Clock, lost: Callable[[str], None]) -> Hold:
        """Take the hold, once an earlier holder has released it or is silent; then beat until it is released.

        A coordinator of the same run need not wait: the registry has let it lead.

        Raises
        ------
        UserError
            A process writes there, or takes the hold at the same time.
        """
        earlier = highest(store, run)
        if earlier:
            _wait_until_silent(store, run, earlier, run_id, clock)
        hold = cls(store, run, earlier + 1, run_id, clock, lost)
        if not store.create(_url(run, hold.number), hold._content(released=False)):
            raise UserError(f"{run}: another process begins to write there at this moment; run one of the two")
        store.delete(_url(run, number) for number in range(max(1, earlier - 8), earlier))
        hold._thread = runtime.spawn(hold._beat_on, "hold")
        return hold

    def confirm(self) -> None:
        """Check that no other process has taken the hold; raises Deposed. Cost: a listing."""
        if highest(self._store, self._run) > self.number:
            raise Deposed(f"{self._run}: another coordinator writes there now")

    def release(self) -> None:
        """End, so that the next holder need not wait."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._store.replace(_url(self._run, self.number), self._content(released=True))
        except (Unavailable, StorageError) as error:
            log.warning(f"the run's prefix could not be released; a resume waits for {SILENT_S:g} s: {error}")

    def _content(self, released: bool) -> bytes:
        return json.dumps({"id": self._id, "run": self._run_id, "beats": self._beats, "released": released}).encode()

    def beat(self) -> bool:
        """Write the holder's object again; False where another process has taken the hold."""
        self._beats += 1
        try:
            self.confirm()
            self._store.replace(_url(self._run, self.number), self._content(released=False))
        except Deposed as error:
            self._lost(str(error))
            return False
        except (Unavailable, StorageError):  # the publisher reports it, and the next beat is soon
            pass
        return True

    def _beat_on(self) -> None:
        while not self._clock.wait(self._ended, BEAT_S) and self.beat():
            pass


def _url(run: Url, number: int) -> Url:
    return run / PREFIX / f"{number:08d}.json"


def highest(store: ObjectStore, run: Url) -> int:
    """The highest number of all holders; 0 where there was none."""
    names = (url.name.removesuffix(".json") for url in store.list(run / PREFIX))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _wait_until_silent(store: ObjectStore, run: Url, number: int, run_id: int, clock: Clock) -> None:
    """Wait until a holder of another run has released the prefix or has been silent for long enough.

    Raises
    ------
    UserError
        It beats.
    """
    first = store.read(_url(run, number))
    if json.loads(first)["released"] or json.loads(first)["run"] == run_id:
        return
    log.info(f"{run}: was not released by the process that wrote there; watching it for {SILENT_S:g} s")
    until_s, never = clock.now() + SILENT_S, runtime.event()
    while clock.now() < until_s:
        clock.wait(never, BEAT_S / 3)
        seen = store.read(_url(run, number))
        if json.loads(seen)["released"]:
            return
        if seen != first:
            raise UserError(f"{run}: a run is in progress there; end it first, or give this one another name")
