"""One process at a time writes below a prefix: one that beats is not disturbed, a silent one is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dbelief.errors import Deposed, UserError
from dbelief.process.clock import ManualClock
from dbelief.process.runtime import Event
from dbelief.rundir.stored.hold import SILENT_S, Hold
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url
from tests.dbelief.rundir.stored.memory_store import FaultyMemory


class Watching(ManualClock):
    """A clock of a process that watches another one, which does something whenever this one waits."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.meanwhile, self.waited_s = meanwhile, 0.0

    def wait(self, event: Event, timeout_s: float) -> bool:
        if self.waited_s < 2 * SILENT_S and timeout_s < 2.0:  # not the beats of its own, which stay out
            self.meanwhile()
            self.waited_s += timeout_s
            self.advance(timeout_s)
            return event.is_set()
        return super().wait(event, timeout_s)


RUNS = iter(range(1, 1000))


def acquire(
    store: ObjectStore, run: Url, lost: list[str] | None = None, clock: ManualClock | None = None, run_id: int = 0
) -> Hold:
    """A hold of another run, whose thread waits for a clock that stands still."""
    noted = list[str]() if lost is None else lost
    return Hold.acquire(store, run, run_id or next(RUNS), clock or ManualClock(), noted.append)


def test_a_released_prefix_is_taken_at_once(store: ObjectStore, run: Url) -> None:
    for _ in range(12):
        clock = Watching()
        hold = acquire(store, run, clock=clock)
        hold.confirm()
        hold.release()
        assert clock.waited_s == 0
    names = sorted(url.name for url in store.list(run / "holders"))
    assert names[-1] == "00000012.json"
    assert len(names) <= 9, "old ones are removed"


def test_a_process_that_beats_is_not_replaced(store: ObjectStore, run: Url) -> None:
    lost: list[str] = []
    hold = acquire(store, run, lost)
    with pytest.raises(UserError, match=rf"^{run}: a run is in progress there; end it first, or give this one another"):
        acquire(store, run, clock=Watching(hold.beat))
    hold.confirm()
    hold.release()
    assert lost == []


def test_one_that_releases_while_it_is_watched_is_replaced(store: ObjectStore, run: Url) -> None:
    hold, clock = acquire(store, run), Watching()
    clock.meanwhile = hold.release
    acquire(store, run, clock=clock).release()
    assert 0 < clock.waited_s < SILENT_S


def test_a_silent_process_is_replaced_and_learns_it(store: ObjectStore, run: Url) -> None:
    lost: list[str] = []
    suspended, clock = acquire(store, run, lost), Watching()
    following = acquire(store, run, clock=clock)
    assert clock.waited_s >= SILENT_S
    with pytest.raises(Deposed, match=rf"^{run}: another coordinator writes there now$"):
        suspended.confirm()
    assert not suspended.beat()
    assert lost == [f"{run}: another coordinator writes there now"]
    suspended.release()
    following.confirm()
    assert following.beat()
    following.release()


def test_a_coordinator_of_the_same_run_does_not_wait(store: ObjectStore, run: Url) -> None:
    first, clock = acquire(store, run, run_id=1234), Watching()
    second = acquire(store, run, clock=clock, run_id=1234)
    assert clock.waited_s == 0
    with pytest.raises(Deposed):
        first.confirm()
    second.confirm()
    second.release()
    first.release()


def test_of_two_that_begin_at_once_one_is_refused(
    store: ObjectStore, run: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = store.create

    def late(url: Url, content: bytes) -> bool:
        assert create(url, b"{}")
        return create(url, content)

    monkeypatch.setattr(store, "create", late)
    with pytest.raises(UserError, match="another process begins to write there at this moment"):
        acquire(store, run)


def test_beats_that_fail_are_made_later(store: ObjectStore, backend: FaultyMemory, run: Url) -> None:
    lost: list[str] = []
    hold = acquire(store, run, lost)
    for error in (None, ConnectionRefusedError(), PermissionError(), None):
        backend.error = error
        assert hold.beat()
    assert json.loads(store.read(run / "holders" / "00000001.json"))["beats"] == 4
    hold.release()
    assert lost == []
