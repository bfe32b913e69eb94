"""Which segments go where, so that a number of shards hold equal shares of a job. Pure.

Shares are counted in segments: they are of one length, but for the last one of each rank's part. Shards that are to
go give all; of the others each ends with as many as any other, or one more, and that is left to those who have most
now. So nobody gives what another brings, no segment moves twice, and as few move as can be. Who gives keeps its first
segments, and who takes is given neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from dbelief.core.placement import Placement, ShardPlacement, runs_of

from ..core.effects import MigrateSegments

BATCH = 16
"""Segments that go from one shard to another at a time: for so long as that takes, nobody serves them."""


def plan_migrations(placement: Placement, shards: int) -> list[MigrateSegments]:
    """What is to move until the shards 0 to `shards` - 1, all of which have a place, hold everything.

    Nobody of them then holds more than an equal share of the numbers by more than a segment; of a model over R ranks,
    by more than 1 + (R - 1) / `shards` of one. Asked for anew after the first of these moves, it is as many less.
    """
    held = {place.shard: place.count for place in placement.places}
    share, more = divmod(len(placement.spans), shards)
    stay = sorted(range(shards), key=lambda shard: (-held[shard], shard))
    wanted = {shard: share + (rank < more) for rank, shard in enumerate(stay)}
    free = sorted(
        (index, place.shard)
        for place in placement.places
        for index in islice(place.segments, wanted.get(place.shard, 0), None)
    )
    batches: dict[tuple[int, int], list[int]] = {}
    for (index, giver), taker in zip(free, _receivers(held, wanted), strict=True):
        batches.setdefault((giver, taker), []).append(index)
    return [
        MigrateSegments(giver, taker, tuple(segments[first : first + BATCH]))
        for (giver, taker), segments in batches.items()
        for first in range(0, len(segments), BATCH)
    ]


def _receivers(held: dict[int, int], wanted: dict[int, int]) -> Iterator[int]:
    """Each shard that lacks segments, as often as it lacks one, by rising number."""
    for shard, count in sorted(wanted.items()):
        for _ in range(count - held[shard]):
            yield shard


def apply_migration(placement: Placement, move: MigrateSegments) -> Placement:
    """The placement after a move."""
    segments = {place.shard: set(place.segments) for place in placement.places}
    segments[move.giver] -= set(move.segments)
    segments[move.taker] |= set(move.segments)
    places = (replace(place, runs=runs_of(sorted(segments[place.shard]))) for place in placement.places)
    return replace(placement, epoch=placement.epoch + 1, places=tuple(places))


def add_shard(placement: Placement, place: ShardPlacement) -> Placement:
    """The placement with one more shard."""
    places = sorted((*placement.places, place), key=lambda place: place.shard)
    return replace(placement, epoch=placement.epoch + 1, places=tuple(places))


def remove_shard(placement: Placement, shard: int) -> Placement:
    """The placement without a shard that holds nothing."""
    places = tuple(place for place in placement.places if place.shard != shard)
    return replace(placement, epoch=placement.epoch + 1, places=places)
