"""The contract of both registries, tested on both."""

import random
from collections import Counter
from typing import Any

import pytest

from dbelief.errors import Rejected
from dbelief.process.clock import ManualClock, SystemClock
from dbelief.registry import EmbeddedRegistry, MemoryRegistry, Registry
from dbelief.registry.server import RedisRegistry
from tests.threads import at_once


def test_one_owner_at_a_time(subject: Any) -> None:
    subject.registry.acquire(subject.job, "a", 30.0)
    other = subject.another()
    assert other.acquire(subject.job, "b", 30.0) is None
    owner, left_s = other.holder(subject.job)
    assert owner == "a"
    assert 25.0 < left_s <= 30.0


def test_jobs_do_not_know_each_other(subject: Any) -> None:
    one = subject.registry.acquire(subject.job, "a", 30.0)
    subject.registry.write(subject.job, one, {"state": b"ready"})
    assert subject.registry.acquire(subject.job + "-2", "b", 30.0) == 1
    assert subject.registry.read(subject.job + "-2") == {}


def test_takeover_fences_the_leader_that_slept(subject: Any) -> None:
    sleeper, heir, job = subject.registry, subject.another(), subject.job
    old = sleeper.acquire(job, "a", 30.0)
    sleeper.write(job, old, {"step": b"7"})
    subject.expire(job)
    assert heir.holder(job) is None
    new = heir.acquire(job, "b", 30.0)
    assert new == old + 1
    assert heir.read(job) == {"step": b"7"}
    with pytest.raises(Rejected, match=rf"job {job}: write under leader epoch {old} .*epoch {new} leads"):
        sleeper.write(job, old, {"step": b"8", "other": b"x"})
    assert heir.read(job) == {"step": b"7"}
    assert sleeper.renew(job, old, 30.0) is False
    sleeper.release(job, old)
    assert heir.holder(job)[0] == "b"


def test_expired_lease_is_lost_even_if_not_taken(subject: Any) -> None:
    epoch = subject.registry.acquire(subject.job, "a", 30.0)
    subject.expire(subject.job)
    assert subject.registry.renew(subject.job, epoch, 30.0) is False
    with pytest.raises(Rejected, match="no coordinator holds the lease"):
        subject.registry.write(subject.job, epoch, {"step": b"1"})
    assert subject.registry.read(subject.job) == {}


def test_renew_lengthens(subject: Any) -> None:
    epoch = subject.registry.acquire(subject.job, "a", 1.0)
    assert subject.registry.renew(subject.job, epoch, 60.0) is True
    assert subject.registry.holder(subject.job)[1] > 50.0


def test_release_keeps_values_and_epochs(subject: Any) -> None:
    epoch = subject.registry.acquire(subject.job, "a", 30.0)
    subject.registry.write(subject.job, epoch, {"step": b"1"})
    subject.registry.release(subject.job, epoch)
    assert subject.registry.holder(subject.job) is None
    assert subject.registry.read(subject.job) == {"step": b"1"}
    assert subject.another().acquire(subject.job, "b", 30.0) == epoch + 1


def test_write_stores_replaces_and_deletes_at_once(subject: Any) -> None:
    registry, job = subject.registry, subject.job
    epoch = registry.acquire(job, "a", 30.0)
    blob = bytes(range(256)) * 1000
    registry.write(job, epoch, {"keep": b"1", "go": b"2", "blob": blob, "": b""})
    registry.write(job, epoch, {"keep": b"3", "go": None, "never": None, "größe": b"\x00"})
    assert registry.read(job) == {"keep": b"3", "blob": blob, "": b"", "größe": b"\x00"}
    registry.write(job, epoch, {})
    with pytest.raises(Rejected):
        registry.write(job, epoch + 1, {})


def test_write_takes_more_names_than_a_lua_stack_holds(subject: Any) -> None:
    epoch = subject.registry.acquire(subject.job, "a", 30.0)
    many = {f"lease/{i}": b"%d" % i for i in range(20_000)}
    subject.registry.write(subject.job, epoch, many)
    assert subject.registry.read(subject.job) == many
    subject.registry.write(subject.job, epoch, dict.fromkeys(many))
    assert subject.registry.read(subject.job) == {}


@pytest.mark.parametrize("far", [41, 2**53])
def test_epochs_never_go_back(subject: Any, far: int) -> None:
    registry, job = subject.registry, subject.job
    registry.raise_epoch(job, far)
    registry.raise_epoch(job, 3)
    epoch = registry.acquire(job, "a", 30.0)
    assert epoch == far + 1
    registry.raise_epoch(job, far + 8)
    registry.write(job, epoch, {"still": b"leader"})
    assert registry.acquire(job, "a", 30.0) == far + 9


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_needs_a_length(subject: Any, ttl_s: float) -> None:
    with pytest.raises(ValueError, match="lease"):
        subject.registry.acquire(subject.job, "a", ttl_s)


@pytest.mark.parametrize("name", ["", "a{b}", "a:b", "x" * 65, "ab\n"])
def test_a_job_name_must_be_safe_inside_a_key(subject: Any, name: str) -> None:
    with pytest.raises(ValueError, match="job name"):
        subject.registry.read(name)


def test_only_bytes_are_stored(subject: Any) -> None:
    epoch = subject.registry.acquire(subject.job, "a", 30.0)
    with pytest.raises(ValueError, match="'step' must be bytes"):
        subject.registry.write(subject.job, epoch, {"other": b"1", "step": 3})
    assert subject.registry.read(subject.job) == {}


def test_of_many_that_race_one_leads(subject: Any) -> None:
    clients = [subject.another() for _ in range(8)]
    epochs = at_once(lambda number: clients[number].acquire(subject.job, f"o{number}", 30.0), range(8))
    assert [epoch for epoch in epochs if epoch is not None] == [1]


@pytest.mark.processes
def test_twin_and_server_agree_on_any_sequence(server: EmbeddedRegistry) -> None:
    """300 random calls, two owners: the answers, refusals and contents are the same step by step."""
    rng = random.Random(0)
    pair: tuple[Registry, Registry] = (
        MemoryRegistry(ManualClock()),
        RedisRegistry(server.url, SystemClock()),
    )
    seen: Counter[tuple[str, type]] = Counter()
    leads = 0
    for _ in range(300):
        owner, epoch, name = rng.choice("ab"), leads + rng.choice([-1, 0, 0, 0, 1]), rng.choice("xyz")
        value = rng.choice([b"1", b"", None])
        call: tuple[Any, ...] = rng.choice(
            [
                ("acquire", owner, 1000.0),
                ("renew", epoch, 1000.0),
                ("write", epoch, {name: value, "z": value}),
                ("raise_epoch", rng.randrange(20)),
                ("release", epoch),
            ]
        )
        answers = [_outcome(registry, *call) for registry in pair]
        assert answers[0] == answers[1], call
        assert pair[0].read("same") == pair[1].read("same"), call
        seen[call[0], type(answers[0])] += 1
        if isinstance(answers[0], int) and call[0] == "acquire":
            leads = answers[0]
    pair[1].close()
    assert len(seen) == 7, "both outcomes of acquire and of write came up"
    assert min(seen.values()) > 5, seen


def _outcome(registry: Registry, method: str, *arguments: Any) -> object:
    try:
        return getattr(registry, method)("same", *arguments)
    except Rejected as refusal:
        return str(refusal)


def test_time_ends_a_lease_of_the_twin() -> None:
    clock = ManualClock()
    twin = MemoryRegistry(clock)
    twin.acquire("j", "a", 2.0)
    clock.advance(1.5)
    assert twin.holder("j") == ("a", 0.5)
    assert twin.renew("j", 1, 2.0)
    clock.advance(1.9)
    assert twin.acquire("j", "b", 2.0) is None
    clock.advance(0.2)
    assert twin.acquire("j", "b", 2.0) == 2
