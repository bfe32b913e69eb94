from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.members import Member, Members
from dbelief.errors import Rejected, ResourceExhausted


def members(shards: int = 2, beat_s: float = 5.0) -> Members:
    return Members(beat_s, set(range(shards)))


def join(
    them: Members, kind: str = "replica", token: int = 0, now_s: float = 0.0, requested: int | None = None
) -> Member:
    return them.join(kind, token, f"host:{token}", "10.0.0.1:1", now_s, requested)


def test_a_repeated_join_gets_the_same_answer() -> None:
    them = members()
    first = join(them, token=7)
    assert join(them, token=7) is first
    assert join(them, token=8) is not first


def test_token_of_a_dead_member_starts_a_new_incarnation() -> None:
    them = members()
    first = join(them, token=7)
    first.state = "died"
    second = join(them, token=7)
    assert (second.number, second.incarnation) == (0, 2)


def test_replicas_and_clients_share_numbers_shards_do_not() -> None:
    them = members()
    numbers = [join(them, kind, t).number for t, kind in enumerate(["replica", "client", "shard", "replica", "shard"])]
    assert numbers == [0, 1, 0, 2, 1]


@pytest.mark.parametrize(("requested", "number"), [(5, 5), (0, 1), (None, 1)])
def test_a_wish_is_honoured_where_the_number_is_free(requested: int | None, number: int) -> None:
    them = members()
    join(them, token=1)
    assert join(them, token=2, requested=requested).number == number


@pytest.mark.parametrize(("requested", "number"), [(1, 1), (2, 0), (99, 0)])
def test_a_requested_shard_number_is_one_of_the_job(requested: int, number: int) -> None:
    assert join(members(shards=2), "shard", 1, requested=requested).number == number


def test_a_shard_too_many_is_refused_and_takes_nothing() -> None:
    them = members(shards=1)
    join(them, "shard", 1)
    with pytest.raises(Rejected, match=r"all 1 shards of the job have joined; `dbelief scale ps` allows more"):
        join(them, "shard", 2)
    assert them.incarnations == 1
    assert len(them.alive("shard")) == 1


def test_lookup_requires_the_exact_incarnation() -> None:
    them = members()
    old = join(them, token=1)
    old.state = "died"
    new = join(them, token=2)
    assert old.number == new.number == 0
    assert them.find("replica", 0, old.incarnation) is None
    assert them.find("replica", 0, new.incarnation) is new
    assert them.find("client", 0, new.incarnation) is None
    assert them.find_pusher(0, new.incarnation) is new
    assert them.find_pusher(0, old.incarnation) is None


def test_a_client_is_a_pusher_and_a_shard_is_none() -> None:
    them = members()
    client, shard = join(them, "client", 1), join(them, "shard", 2)
    assert them.find_pusher(client.number, client.incarnation) is client
    assert them.find_pusher(shard.number, shard.incarnation) is None


def test_members_expire_after_missed_heartbeats() -> None:
    them = members(beat_s=5.0)
    quiet, loud, gone = (join(them, token=t) for t in (1, 2, 3))
    gone.state = "left"
    for now_s in range(1, 6):
        loud.last_beat_s = now_s
        assert them.expired(now_s) == []
    assert them.expired(5.1) == [quiet]


def test_no_member_expires_whose_heartbeat_may_wait_to_be_processed() -> None:
    them = members(beat_s=5.0)
    quiet = join(them)
    for tick in range(1, 20):
        assert them.expired(tick * 0.5, backlog_s=4.5) == []
    assert them.expired(9.6, backlog_s=4.5) == [quiet]
    assert them.expired(9.6, backlog_s=0.0) == [quiet]


def test_coordinator_pause_expires_no_member() -> None:
    them = members(beat_s=5.0)
    quiet = join(them)
    assert them.expired(3.0) == []
    assert them.expired(63.0) == []
    assert quiet.last_beat_s == 60.0
    assert them.expired(64.9) == []
    assert them.expired(65.1) == [quiet]


def test_heartbeat_after_a_pause_is_not_moved_forward() -> None:
    them = members(beat_s=5.0)
    member = join(them)
    them.expired(0.0)
    member.last_beat_s = 59.9
    them.expired(60.0)
    assert member.last_beat_s == 60.0


@pytest.mark.parametrize("beat_s", [0.2, 0.5])
def test_short_timeouts_work_with_coarse_ticks(beat_s: float) -> None:
    them = members(beat_s=beat_s)
    quiet = join(them)
    assert [them.expired(tick * 0.4) for tick in range(3)][-1] == [quiet]


def test_members_are_sorted_with_latest_incarnation_only() -> None:
    them = members()
    join(them, "shard", 1)
    join(them, token=2).state = "died"
    join(them, token=3)
    assert [(m.kind, m.number, m.token) for m in them.all()] == [("replica", 0, 3), ("shard", 0, 1)]
    assert them.all()[0].title == "replica 0 (host:3)"


@given(st.lists(st.tuples(st.sampled_from(["replica", "client"]), st.booleans(), st.none() | st.integers(0, 4))))
def test_incarnations_and_live_numbers_are_unique(
    story: list[tuple[str, bool, int | None]],
) -> None:
    them = members()
    lives: list[Member] = []
    for token, (kind, dies, requested) in enumerate(story):
        lives.append(join(them, kind, token, requested=requested))
        if dies:
            lives[token // 2].state = "died"
        living = [m.number for m in them.alive("replica", "client")]
        assert len(living) == len(set(living))
    assert [m.incarnation for m in lives] == list(range(1, len(story) + 1))


def test_a_job_has_only_so_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.core.members.MOST_MEMBERS", 3)
    them = members()
    first = [join(them, kind, token) for token, kind in enumerate(("replica", "client", "replica"))]
    with pytest.raises(ResourceExhausted, match="the job has 3 replicas and clients, the maximum"):
        join(them, "client", 7)
    join(them, "shard", 8)  # those are counted by the job
    them.mark_ended(first[1], "left")
    assert join(them, "replica", 9, requested=5).number == 1
