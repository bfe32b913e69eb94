"""Migration plans that give a number of shards equal shares of a job's segments. Pure functions.

Shares are counted in segments, those of buckets of tables apart. All others have the same length, except the last one
of each rank's range. Shards to be removed send all their segments. Each remaining shard ends with the same number as
the others or one more; the shards that hold most now get the extra one. So no shard both sends and receives segments of
a kind, no segment moves twice, and the number of moves is minimal. A sender keeps its first segments; a receiver gets
contiguous ones where possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dbelief.core.placement import Placement, ShardPlacement, runs_of

from ..core.effects import MigrateSegments

BATCH = 16
"""Segments per migration between two shards: they are unavailable while it runs."""


def plan_migrations(placement: Placement, shards: int) -> list[MigrateSegments]:
    """Migrations needed until the shards 0 to `shards` - 1, all of which have a place, hold all segments.

    Afterwards no shard holds more than an equal share of the numbers by more than one segment. For a model over R
    ranks the bound is 1 + (R - 1) / `shards` segments. A plan made after the first migration has only the others.
    """
    dense = placement.dense
    owned = {place.shard: list(place.segments) for place in placement.places}
    parts = [
        {shard: [index for index in indices if (index < dense) == first] for shard, indices in owned.items()}
        for first in (True, False)
    ]
    return [move for part in parts for move in _shared_out(part, shards)]


def _shared_out(owned: Mapping[int, Sequence[int]], shards: int) -> list[MigrateSegments]:
    """As `plan_migrations`, of the segments that each shard owns."""
    held = {shard: len(indices) for shard, indices in owned.items()}
    share, more = divmod(sum(held.values()), shards)
    stay = sorted(range(shards), key=lambda shard: (-held[shard], shard))
    wanted = {shard: share + (rank < more) for rank, shard in enumerate(stay)}
    free = sorted((index, shard) for shard, indices in owned.items() for index in indices[wanted.get(shard, 0) :])
    batches: dict[tuple[int, int], list[int]] = {}
    receivers = (shard for shard, count in sorted(wanted.items()) for _ in range(count - held[shard]))
    for (index, sender), receiver in zip(free, receivers, strict=True):
        batches.setdefault((sender, receiver), []).append(index)
    return [
        MigrateSegments(sender, receiver, tuple(segments[first : first + BATCH]))
        for (sender, receiver), segments in batches.items()
        for first in range(0, len(segments), BATCH)
    ]


def apply_migration(placement: Placement, move: MigrateSegments) -> Placement:
    """Placement after a migration."""
    segments = {place.shard: set(place.segments) for place in placement.places}
    segments[move.sender] -= set(move.segments)
    segments[move.receiver] |= set(move.segments)
    places = (replace(place, runs=runs_of(sorted(segments[place.shard]))) for place in placement.places)
    return replace(placement, epoch=placement.epoch + 1, places=tuple(places))


def add_shard(placement: Placement, place: ShardPlacement) -> Placement:
    """Placement with one more shard."""
    places = sorted((*placement.places, place), key=lambda place: place.shard)
    return replace(placement, epoch=placement.epoch + 1, places=tuple(places))


def remove_shard(placement: Placement, shard: int) -> Placement:
    """Placement without a shard that holds no segments."""
    places = tuple(place for place in placement.places if place.shard != shard)
    return replace(placement, epoch=placement.epoch + 1, places=places)
