"""Lost pushes are counted once: by their pusher's report, or from the ledgers where it makes none."""

import json

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.ledgers import Applied, merge_ledgers
from coordinator.scheduling.leases import Outstanding
from coordinator.scheduling.losses import Losses, pushed_before
from dbelief.core.lease import DataLease
from dbelief.core.push import NO_PUSH, LedgerRow


def applied(lowest: int, highest: int, lost: int = 0) -> Applied:
    return Applied(LedgerRow(lowest), highest, lost)


def test_a_loss_that_was_reported_is_not_counted_again() -> None:
    losses = Losses()
    losses.report(1, 3)
    assert losses.count(1, reached=10, applied=applied(10, 10, lost=3)) == 0
    assert losses.count(1, reached=10, applied=applied(10, 10, lost=5)) == 2
    assert losses.count(1, reached=10, applied=applied(10, 10, lost=5)) == 0


def test_a_pusher_that_pushes_no_more_has_lost_what_the_ledgers_lack() -> None:
    losses = Losses()
    assert losses.count(1, reached=10, applied=applied(7, 10)) == 3
    assert losses.count(1, reached=10, applied=applied(6, 10)) == 1
    assert losses.count(2, reached=0, applied=applied(4, 5)) == 0


def test_another_coordinator_knows_what_is_counted() -> None:
    losses, successor = Losses(), Losses()
    losses.report(1, 3)
    successor.restore(json.loads(json.dumps(losses.state())))
    assert successor.count(1, reached=3, applied=applied(3, 3, lost=3)) == 0
    successor.forget(1)
    assert successor.state() == []


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12))
def test_every_loss_is_counted_once_whoever_counts_it(events: list[tuple[int, bool]]) -> None:
    """A shard loses some pushes of one pusher at a time; the pusher reports that, or fails to."""
    losses, reported, counted, pushed, skipped = Losses(), 0, 0, 0, 0
    for lost, reports in events:
        pushed += 5
        skipped += lost
        if reports:
            losses.report(1, lost)
            reported += lost
        counted += losses.count(1, pushed, applied(pushed, pushed, skipped))
    assert reported + counted == skipped


def test_the_ledgers_of_all_shards_are_merged() -> None:
    one = {1: Applied(LedgerRow(4, 9, 10), 5, 2), 2: applied(7, 7)}
    other = {1: Applied(LedgerRow(3, 8, 30), 4, 1)}
    merged = {1: Applied(LedgerRow(3, 8, 30), 5, 2), 2: Applied(NO_PUSH, 7)}
    assert merge_ledgers([one, other]) == merge_ledgers([other, one]) == merged


def test_a_set_has_the_pushes_before_its_leases() -> None:
    def held(incarnation: int, since: int) -> list[object]:
        return Outstanding(DataLease(1, 0, 0, 30, 0), 0, incarnation, since, position=20).row()

    leases = {"held": [held(1, 8), held(1, 4), held(2, 0)], "reached": [[1, 8], [3, 6]]}
    assert pushed_before(leases) == {1: 4, 2: 0, 3: 6}
    assert pushed_before({"held": [], "reached": []}) == {}
