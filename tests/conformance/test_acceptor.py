"""The acceptor: a run that follows the protocol is accepted, and each that breaks one of its rules is rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.search import ABSENT

from .acceptor import Acceptor
from .events import Event, kinds

needs_spin = pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}")

# Two shards with followers; three pushes, the third after a failover; a takeover; the segment moves; the worker fails.
RUN = """
START 0 set
JOIN 0 owner
JOIN 2 owner
JOIN 1
JOIN 3
RECOVER 0
PLACE 0
RECOVER 1
PLACE 1
FOLLOW 0
LINK 0 1 followed decided
COPY 0 0
BEGIN 0 1
APPLY 0 1 new
MARK 0
RECORD 1 1 new
ACKNOWLEDGE 0 1
WHOLE 0
BEGIN 0 2
APPLY 0 2 new
RECORD 1 2 new
ACKNOWLEDGE 0 2
FAIL 0 promoted led
RECOVER 0 2 promoted
PLACE 0
LEARN
BEGIN 1 3 base
APPLY 1 3 base new
ACKNOWLEDGE 1 3
END 0
JOIN 0
FOLLOW 0
LINK 1 0 followed decided
COPY 1 3
MARK 1
WHOLE 0
TAKE_OVER
COMMAND 1 newest
RESHARD begins
DETACH 0
DETACH 1
LINK 1 0 decided
LINK 2 0 decided
SEND 1 1 arrives
MOVE 1
SERVE 1
SERVE 2 owns
LEARN
BEGIN 2 4 base
APPLY 2 4 base new
ACKNOWLEDGE 2 4
RESHARD
BEGIN 2 5
APPLY 2 5 new
DEAD
FENCE 2
READ 2 5
SETTLE
STOP
"""

# Both copies of a shard are declared failed, and go on without a place: the follower until its leader is told, and the
# leader after the shard is restored from a set. The last push that each has is acknowledged.
OUTLIVED = """
START 0 set
JOIN 0 owner
JOIN 1
RECOVER 0
PLACE 0
FOLLOW 0
LINK 0 1 followed decided
COPY 0 0
MARK 0
WHOLE 0
BEGIN 0 1
APPLY 0 1 new
RECORD 1 1 new
ACKNOWLEDGE 0 1
FAIL 1
DETACH 0
JOIN 1
BEGIN 0 2
APPLY 0 2 new
RECORD 7 2 new
ACKNOWLEDGE 0 2
LINK 0 15 decided
BEGIN 0 3
APPLY 0 3 new
FAIL 0 led
RECOVER 0 0
PLACE 0
JOIN 0
ACKNOWLEDGE 6 3
LEARN
BEGIN 1 4 base
APPLY 1 4 base new
ACKNOWLEDGE 1 4
END 6
END 7
STOP
"""

# The ledger of a worker is read at a leader that another process has followed in its place, before that is restored.
READ = """
START 0 set
JOIN 0 owner
JOIN 1
RECOVER 0
PLACE 0
BEGIN 0 1
APPLY 0 1 new
ACKNOWLEDGE 0 1
DEAD
FAIL 0 led
JOIN 0
FENCE 6
READ 6 1
SETTLE
RECOVER 0 0 fenced
PLACE 0
STOP
"""

Change = Callable[[list[str]], None]


def _move(event: str, before: str) -> Change:
    def change(run: list[str]) -> None:
        run.remove(event)
        run.insert(run.index(before), event)

    return change


def _add(event: str, before: str) -> Change:
    return lambda run: run.insert(run.index(before), event)


def _replace(event: str, by: str) -> Change:
    def change(run: list[str]) -> None:
        run[run.index(event)] = by

    return change


def _remove(*events: str) -> Change:
    def change(run: list[str]) -> None:
        for event in events:
            run.remove(event)

    return change


def _all(*changes: Change) -> Change:
    def change(run: list[str]) -> None:
        for one in changes:
            one(run)

    return change


def _move_to_last(event: str, before: str) -> Change:
    def change(run: list[str]) -> None:
        run.remove(event)
        run.insert(len(run) - 1 - run[::-1].index(before), event)

    return change


# Changes that break no rule.
VARIANTS: dict[str, Change] = {
    "a shard without a link is not detached by a new coordinator": _remove("DETACH 1", "LINK 2 0 decided"),
    "an old leader goes on without a place": _remove("END 0"),
    "a segment is sent by a late command of a replaced coordinator": _all(
        *(_add(event, "SEND 1 1 arrives") for event in ("TAKE_OVER", "DETACH 0", "DETACH 1"))
    ),
}

# Each with the event that is rejected.
MUTANTS: dict[str, tuple[Change, str]] = {
    "an acknowledgement before the follower's record": (_move("ACKNOWLEDGE 0 2", "RECORD 1 2 new"), "ACKNOWLEDGE 0 2"),
    "a push applied twice at its leader": (_add("APPLY 0 2 new", "RECORD 1 2 new"), "APPLY 0 2 new"),
    "a push applied before the one before it": (_replace("BEGIN 0 2", "BEGIN 0 3"), "BEGIN 0 3"),
    "a push of a fenced worker applied": (_move("APPLY 2 5 new", "READ 2 5"), "APPLY 2 5 new"),
    "a promoted follower that lacks an acknowledged push": (
        _replace("RECOVER 0 2 promoted", "RECOVER 0 1 promoted"),
        "RECOVER 0 1 promoted",
    ),
    "a follower promoted that is not in sync": (_remove("WHOLE 0"), "FAIL 0 promoted led"),
    "a follower in sync that is not promoted": (_replace("FAIL 0 promoted led", "FAIL 0 led"), "FAIL 0 led"),
    "a follower promoted before there is a snapshot set": (_replace("START 0 set", "START 0"), "FAIL 0 promoted led"),
    "a follower in sync, restored from a set": (_replace("RECOVER 0 2 promoted", "RECOVER 0 1"), "RECOVER 0 1"),
    "an old leader's acknowledgement after the promotion": (
        _all(
            _add("BEGIN 0 3", "FAIL 0 promoted led"),
            _add("APPLY 0 3 new", "FAIL 0 promoted led"),
            _add("ACKNOWLEDGE 0 3", "LEARN"),
        ),
        "ACKNOWLEDGE 0 3",
    ),
    "an old leader's acknowledgement, without a place, of a push that the promoted follower lacks": (
        _all(
            _add("BEGIN 0 3", "FAIL 0 promoted led"),
            _add("APPLY 0 3 new", "FAIL 0 promoted led"),
            _remove("END 0"),
            _move("JOIN 0", "LEARN"),
            _add("LINK 6 15", "LEARN"),
            _add("ACKNOWLEDGE 6 3", "LEARN"),
        ),
        "ACKNOWLEDGE 6 3",
    ),
    "a push that does not name its base at a promoted follower": (_replace("BEGIN 1 3 base", "BEGIN 1 3"), "BEGIN 1 3"),
    "a segment served by its sender after it has moved": (
        _all(_replace("BEGIN 2 4 base", "BEGIN 1 4 base"), _replace("APPLY 2 4 base new", "APPLY 1 4 base new")),
        "APPLY 1 4 base new",
    ),
    "a segment served by its sender after it was sent": (
        _all(_add("BEGIN 1 4", "SEND 1 1 arrives"), _add("APPLY 1 4 new", "MOVE 1")),
        "APPLY 1 4 new",
    ),
    "a segment served by its receiver before the placement has it": (_move("SERVE 2 owns", "MOVE 1"), "SERVE 2 owns"),
    "a segment that has not arrived is moved": (_replace("SEND 1 1 arrives", "SEND 1 1"), "MOVE 1"),
    "a segment sent while a follower is attached": (_remove("LINK 1 0 decided"), "SEND 1 1 arrives"),
    "an acknowledgement without a follower that was in sync": (
        _all(_add("LOSE 0", "RECORD 1 2 new"), _remove("RECORD 1 2 new")),
        "ACKNOWLEDGE 0 2",
    ),
    "in sync before the copy": (_remove("COPY 0 0"), "MARK 0"),
    "in sync in the registry before the follower has everything": (_move("WHOLE 0", "RECORD 1 1 new"), "WHOLE 0"),
    "a copy that lacks a push": (_replace("COPY 1 3", "COPY 1 2"), "COPY 1 2"),
    "a record out of order": (_replace("RECORD 1 1 new", "RECORD 1 2 new"), "RECORD 1 2 new"),
    "a ledger read before its worker is fenced": (_move("READ 2 5", "FENCE 2"), "READ 2 5"),
    "a worker fenced that the registry has alive": (_remove("DEAD"), "FENCE 2"),
    "a command of a coordinator that was replaced": (_add("COMMAND 1", "RESHARD begins"), "COMMAND 1"),
    "a follower attached while segments move": (_add("FOLLOW 0", "SEND 1 1 arrives"), "FOLLOW 0"),
    "in sync in the registry by a link that a new coordinator has ended": (
        _move_to_last("TAKE_OVER", "WHOLE 0"),
        "WHOLE 0",
    ),
    "an acknowledgement of what was not applied": (_remove("APPLY 2 4 base new"), "ACKNOWLEDGE 2 4"),
}

OUTLIVED_MUTANTS: dict[str, tuple[Change, str]] = {
    "an acknowledgement before the record of a follower without a place": (
        _remove("RECORD 7 2 new"),
        "ACKNOWLEDGE 0 2",
    ),
    "a record at a follower that has only joined": (_replace("RECORD 7 2 new", "RECORD 1 2 new"), "RECORD 1 2 new"),
    "an acknowledgement without a place of what was not applied": (_remove("APPLY 0 3 new"), "ACKNOWLEDGE 6 3"),
    "an acknowledgement without a place that was not counted as lost": (
        _replace("BEGIN 1 4 base", "BEGIN 1 4"),
        "BEGIN 1 4",
    ),
    "an acknowledgement of an old leader that has ended": (_add("END 6", "ACKNOWLEDGE 6 3"), "ACKNOWLEDGE 6 3"),
    "a segment moved that a shard without a place has sent": (
        _all(_add("SEND 6 0 arrives", "LEARN"), _add("MOVE 0", "LEARN")),
        "MOVE 0",
    ),
}
BROKEN = {
    **{name: (RUN, *mutant) for name, mutant in MUTANTS.items()},
    **{name: (OUTLIVED, *mutant) for name, mutant in OUTLIVED_MUTANTS.items()},
    "a ledger read without a place before its worker is fenced": (READ, _remove("FENCE 6"), "READ 6 1"),
    "a ledger read without a place once another shard serves": (
        READ,
        _all(_move("READ 6 1", "STOP"), _move("SETTLE", "STOP")),
        "SETTLE",
    ),
}
FOLLOWED: dict[str, tuple[str, Change]] = {
    "all": (RUN, _remove()),
    "processes without a place": (OUTLIVED, _remove()),
    "a ledger read without a place": (READ, _remove()),
    **{name: (RUN, change) for name, change in VARIANTS.items()},
}


@pytest.fixture(scope="module")
def acceptor(tmp_path_factory: pytest.TempPathFactory) -> Acceptor:
    return Acceptor.compile(tmp_path_factory.mktemp("acceptor"))


def _changed(text: str, change: Change) -> list[str]:
    run = text.split("\n")[1:-1]
    change(run)
    return run


@needs_spin
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_run_that_follows_the_protocol_is_accepted(acceptor: Acceptor, name: str) -> None:
    events = [Event.parse(text) for text in _changed(*FOLLOWED[name])]
    verdict = acceptor.judge(events)
    assert verdict.accepted, (str(events[verdict.position]), verdict)


@needs_spin
@pytest.mark.parametrize("name", BROKEN)
def test_a_run_that_breaks_a_rule_is_rejected(acceptor: Acceptor, name: str) -> None:
    text, change, rejected = BROKEN[name]
    run = _changed(text, change)
    verdict = acceptor.judge([Event.parse(event) for event in run])
    assert not verdict.accepted
    assert run[verdict.position] == rejected


def test_the_run_has_every_kind_of_event_of_a_run_without_broken_calls() -> None:
    seen = {text.split()[0] for text in RUN.split("\n") if text}
    assert kinds().keys() - seen == {"BREAK", "LOSE", "REMOVE", "SAVED"}


def test_an_event_is_read_as_it_is_written() -> None:
    for text in filter(None, RUN.split("\n")):
        assert Event.parse(str(Event.parse(text))) == Event.parse(text)
    with pytest.raises(ValueError, match="APPLY has no owner"):
        Event.parse("APPLY 0 1 owner")
