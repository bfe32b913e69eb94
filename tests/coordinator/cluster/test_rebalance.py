"""Placement of segments on shards: complete, balanced, and with the fewest moves."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from coordinator.cluster.rebalance import BATCH, add_shard, apply_migration, plan_migrations, remove_shard
from dbelief.core.layout import SegmentSpan, assign_segments
from dbelief.core.placement import Placement, ShardPlacement, runs_of
from dbelief.sparse.table import SparseTable, assign_buckets


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Segments of nearly one length, on shards with numbers that may have gaps, held by anyone in any order."""
    lengths = draw(st.lists(st.sampled_from([100, 100, 100, 7]), min_size=1, max_size=80))
    numbers = sorted(draw(st.sets(st.integers(0, 7), min_size=1)))
    owners = draw(st.lists(st.sampled_from(numbers), min_size=len(lengths), max_size=len(lengths)))
    starts = accumulate(lengths, initial=0)
    spans = tuple(SegmentSpan(i, start, length) for i, (start, length) in enumerate(zip(starts, lengths, strict=False)))
    held = {n: [index for index, owner in enumerate(owners) if owner == n] for n in numbers}
    return Placement(1, spans, tuple(ShardPlacement(n, f"10.0.0.{n}:1", 1, runs_of(held[n])) for n in numbers))


def with_places(placement: Placement, shards: int) -> Placement:
    """The same, where every shard below this number has a place."""
    for number in set(range(shards)) - {place.shard for place in placement.places}:
        placement = add_shard(placement, ShardPlacement(number, f"10.0.0.{number}:1", 1, ()))
    return placement


def cut_evenly(lengths: list[int], shards: int) -> Placement:
    """Segments of these lengths in neighbouring runs."""
    spans = tuple(SegmentSpan(index, 100 * index, length) for index, length in enumerate(lengths))
    edges = [n * len(spans) // shards for n in range(shards + 1)]
    runs = [((a, b - a),) if b > a else () for a, b in pairwise(edges)]
    return Placement(1, spans, tuple(ShardPlacement(n, f"10.0.0.{n}:1", 1, run) for n, run in enumerate(runs)))


@given(placements(), st.integers(1, 8))
def test_shares_are_balanced_with_minimal_moves(placement: Placement, shards: int) -> None:
    placement = with_places(placement, shards)
    plan = plan_migrations(placement, shards)
    count = sum(len(move.segments) for move in plan)
    before, made = placement, 0
    taken: set[int] = set()
    while plan:
        move = plan[0]
        assert len(move.segments) <= BATCH
        assert move.receiver < shards
        assert not taken & set(move.segments), "no segment moves twice"
        taken |= set(move.segments)
        made += len(move.segments)
        epoch = placement.epoch
        placement = apply_migration(placement, move)
        assert placement.epoch == epoch + 1
        plan = plan_migrations(placement, shards)
        assert sum(len(move.segments) for move in plan) == count - made, "asked anew, what is left is what was left"
    assert sorted(i for place in placement.places for i in place.segments) == list(range(len(placement.spans)))
    share = len(placement.spans) / shards
    had = {place.shard: place.count for place in before.places}
    for place in placement.places:
        if place.shard >= shards:
            assert not place.count
            placement = remove_shard(placement, place.shard)
        else:
            assert abs(place.count - share) < 1
            assert place.count >= min(had[place.shard], int(share)), "who stays gives no more than what is beyond"
    assert [place.shard for place in placement.places] == list(range(shards))


@given(st.integers(1, 200), st.integers(1, 100), st.integers(1, 8), st.integers(1, 8))
def test_moves_are_fewest_contiguous_and_balanced_by_size(count: int, last: int, before: int, after: int) -> None:
    placement = with_places(cut_evenly([100] * (count - 1) + [last], before), after)
    plan = plan_migrations(placement, after)
    full = sorted((place.count for place in placement.places if place.shard < after), reverse=True)
    kept = sum(min(held, count // after + (rank < count % after)) for rank, held in enumerate(full))
    assert sum(len(move.segments) for move in plan) == count - kept
    while plan:
        placement = apply_migration(placement, plan[0])
        plan = plan_migrations(placement, after)
    assert max(len(place.runs) for place in placement.places) <= before + after
    for place in placement.places:
        held = sum(span.length for span in placement.run(place))
        assert held <= placement.size / after + 100, "at most a segment more than an equal share"


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 6), st.integers(1, 6))
def test_buckets_of_tables_are_shared_out_beside_the_others(dense: int, buckets: int, before: int, after: int) -> None:
    """From one number of shards to another: of both kinds each shard holds an equal share, or one more."""
    spans = [SegmentSpan(index, 100 * index, 100) for index in range(dense)]
    table = SparseTable("user", 4, 7, 0.1, 0.1, dense, buckets)
    spans += table.spans(100 * dense)
    runs = zip(assign_segments(spans[:dense], before), assign_buckets([table], before), strict=True)
    owned = [runs_of([*range(first, first + count), *own]) for (first, count), own in runs]
    places = [ShardPlacement(number, f"10.0.0.{number}:1", 1, run) for number, run in enumerate(owned)]
    placement = with_places(Placement(1, tuple(spans), tuple(places)), after)
    for move in plan_migrations(placement, after):
        placement = apply_migration(placement, move)
    for kind, total in (("dense", dense), ("buckets", buckets)):
        counts = [sum((index < dense) == (kind == "dense") for index in place.segments) for place in placement.places]
        assert sum(counts) == total
        assert max(counts[:after]) - min(counts[:after]) <= 1
        assert not any(counts[after:])
