"""The leader lease held, lost and reacquired; persisted state; an unreachable registry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from coordinator.runtime import leader_lease as module
from coordinator.runtime.leader_lease import LEASE_TTL_S, LeaderLease
from dbelief.errors import Deposed, Rejected, Unavailable
from dbelief.process.clock import ManualClock
from dbelief.registry import MemoryRegistry

NEVER = threading.Event()


class Flaky(MemoryRegistry):
    """A registry that is away as often as it is told to be."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away = 0

    def write(self, job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("registry: no answer")
        super().write(job, epoch, values)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(clock: ManualClock) -> Flaky:
    return Flaky(clock)


@pytest.fixture
def leads(registry: Flaky, clock: ManualClock) -> Iterator[Callable[[str], LeaderLease]]:
    made: list[LeaderLease] = []

    def take(owner: str) -> LeaderLease:
        leadership = LeaderLease.acquire(registry, "mnist", owner, clock, NEVER)
        assert leadership is not None
        made.append(leadership)
        return leadership

    yield take
    for leadership in made:
        leadership.release()


@pytest.fixture
def slept(leads: Callable[[str], LeaderLease], registry: Flaky) -> tuple[LeaderLease, LeaderLease]:
    """One whose lease ran out unnoticed, and the one who has led since."""
    sleeper = leads("a")
    commit(sleeper, "one")
    registry._records["mnist"].lease = None
    other = leads("b")
    commit(other, "two")
    return sleeper, other


def commit(leader: LeaderLease, text: str) -> None:
    """Write down a state that no earlier write holds."""
    leader.commit(lambda complete: (0, {"state": text, "layout": "always the same"}), 1)


def test_one_write_serves_all_waiting_commits(leads: Callable[[str], LeaderLease]) -> None:
    leader = leads("a")
    taken: list[int] = []

    def fields(complete: bool) -> tuple[int, dict[str, str | None]]:
        taken.append(len(taken))
        return 3, {"state": f"{len(taken)}"}

    for step in (2, 1, 3):
        leader.commit(fields, step)
    assert leader.read_state()["state"] == b"1"
    leader.commit(fields, 4)
    assert leader.read_state()["state"] == b"2"


def test_only_changed_fields_are_written(leads: Callable[[str], LeaderLease], registry: Flaky) -> None:
    leader = leads("a")
    written: list[set[str]] = []
    write = registry.write

    def noted(job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        written.append(set(values))
        write(job, epoch, values)

    registry.write = noted  # type: ignore[method-assign]
    for text in ("one", "two", "two"):
        commit(leader, text)
    assert written == [{"state", "layout", "leader"}, {"state", "leader"}]
    assert registry.read("mnist")["state"] == b"two"


def test_expired_lease_is_reacquired_with_a_new_epoch(
    leads: Callable[[str], LeaderLease], registry: Flaky, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = leads("a")
    commit(leader, "one")
    registry._records["mnist"].lease = None  # it slept through it
    commit(leader, "two")
    assert leader.epoch == 2
    assert registry.read("mnist")["state"] == b"two"
    assert "the leader lease had expired; reacquired under epoch 2" in capsys.readouterr().err


def test_deposed_leader_writes_nothing(slept: tuple[LeaderLease, LeaderLease], registry: Flaky) -> None:
    sleeper, _ = slept
    with pytest.raises(Rejected, match="another coordinator leads job mnist now"):
        commit(sleeper, "three")
    assert registry.read("mnist")["state"] == b"two"
    assert sleeper.lost


def test_leader_confirms_its_lease_unless_another_has_led(slept: tuple[LeaderLease, LeaderLease]) -> None:
    sleeper, other = slept
    other.confirm()
    with pytest.raises(Deposed, match="another coordinator leads job mnist now"):
        sleeper.confirm()


def test_leader_is_certain_until_its_lease_may_have_expired(
    leads: Callable[[str], LeaderLease], registry: Flaky, clock: ManualClock
) -> None:
    leader = leads("a")
    assert leader.certain
    assert clock.until_waiting(1)  # its renewals
    registry.renew = lambda *_: (_ for _ in ()).throw(Unavailable("registry: no answer"))  # type: ignore[method-assign]
    clock.advance(LEASE_TTL_S / 2)
    assert leader.certain
    clock.advance(LEASE_TTL_S / 2)
    assert not leader.certain


def test_deposed_leader_stays_deposed_after_the_other_ended(
    slept: tuple[LeaderLease, LeaderLease], registry: Flaky
) -> None:
    sleeper, other = slept
    other.release()
    with pytest.raises(Rejected, match="another coordinator leads"):
        commit(sleeper, "three")
    assert registry.holder("mnist") is None, "it gives back what it took by mistake"


def test_registry_without_memory_reuses_no_epoch(leads: Callable[[str], LeaderLease], registry: Flaky) -> None:
    leader = leads("a")
    commit(leader, "one")
    registry._records.clear()
    commit(leader, "two")
    assert leader.epoch == 2
    assert registry.read("mnist").keys() == {"state", "leader", "layout"}, "all of it is written again"


def test_commit_waits_for_an_unreachable_registry(
    leads: Callable[[str], LeaderLease],
    registry: Flaky,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    leader = leads("a")
    registry.away = 3
    commit(leader, "one")
    assert registry.read("mnist")["state"] == b"one"
    said = capsys.readouterr().err
    assert said.count("registry: no answer; waiting up to 60 s for it") == 1
    assert "the registry is available again" in said


def test_commit_fails_after_the_retry_deadline(
    leads: Callable[[str], LeaderLease], registry: Flaky, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGISTRY_S", -1.0)
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    leader = leads("a")
    registry.away = 2
    with pytest.raises(Unavailable, match="no answer"):
        commit(leader, "one")


def test_another_stands_by_until_the_lease_is_free(
    leads: Callable[[str], LeaderLease], registry: Flaky, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(leads("a"), "one")
    got: list[LeaderLease] = []
    waiter = threading.Thread(target=lambda: got.append(leads("b")))
    waiter.start()
    assert clock.until_waiting(2)  # the leader's own lease, and the one who stands by
    registry._records["mnist"].lease = None
    clock.advance(1.0)
    waiter.join(60)
    assert got[0].epoch == 2
    assert got[0].read_state()["state"] == b"one"
    assert "job mnist is led by a; standing by" in capsys.readouterr().err


def test_a_registry_that_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(autojump=True)
    registry, away = Flaky(clock), [True, True]
    acquire = registry.acquire

    def acquires(job: str, owner: str, ttl_s: float) -> int | None:
        if away:
            away.pop()
            raise Unavailable("registry: no answer")
        return acquire(job, owner, ttl_s)

    monkeypatch.setattr(registry, "acquire", acquires)
    leadership = LeaderLease.acquire(registry, "mnist", "a", clock, threading.Event())
    assert leadership is not None
    assert not away
    leadership.release()


def test_a_lease_that_ends_between_two_calls_is_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held when it is asked for, and free when its holder is asked for."""
    clock = ManualClock(autojump=True)
    registry, held = Flaky(clock), [True]
    acquire = registry.acquire
    monkeypatch.setattr(registry, "acquire", lambda *words: None if held and held.pop() else acquire(*words))
    leadership = LeaderLease.acquire(registry, "mnist", "a", clock, threading.Event())
    assert leadership is not None
    leadership.release()


def test_standing_by_ends_when_asked_to(registry: Flaky, clock: ManualClock) -> None:
    registry.acquire("mnist", "a", LEASE_TTL_S)
    asked = threading.Event()
    asked.set()
    assert LeaderLease.acquire(registry, "mnist", "b", clock, asked) is None
