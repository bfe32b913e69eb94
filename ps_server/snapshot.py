"""Saving and restoring a shard's file of a snapshot set (see `dbelief.checkpoint.shard_file`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dbelief.checkpoint.set_files import SetFiles, files_in
from dbelief.checkpoint.shard_file import StoredSegment, read_segments, write_shard
from dbelief.errors import CorruptSnapshot, WriteFailed
from dbelief.url import Url

from .store.bucket import Bucket
from .store.copy_on_write import SnapshotView
from .store.segment import Segment
from .store.shard import Shard


class Saved(NamedTuple):
    """A shard's part of a set: its manifest, the bytes of its file, and the files of earlier sets that it needs."""

    manifest: Path | Url
    nbytes: int
    needs: list[str]


def save(shard: Shard, folder: Path | SetFiles, number: int, set_id: str, job: str, shard_epoch: int) -> Saved:
    """Write the shard's file and manifest into the set's folder.

    The set shows the shard as of the start of this call: every segment gets a snapshot view, between two pushes, before
    the first is written, and training continues meanwhile. Of vectors other than "w" a set holds those that are
    complete in a segment then. A repeated call waits for a first one that is still writing, and writes again.

    Of tables the set gets all rows, or what has changed since an earlier set that has them all: as long as that names
    less than half of the rows, and all such changes since then have named fewer than there are.

    Cost: a segment's lock is held for its snapshot view (10 us, and its ledger; a bucket's, for a copy of what has
    changed) and for one copy of it. Memory: one segment, what has changed of buckets, and copies of what is pushed
    before it is written (see `store/copy_on_write.py`).

    Raises
    ------
    Rejected
        Where initial values are missing.
    WriteFailed
        Where the set is complete, a file cannot be written, or what changed could not be copied; names it.
    """
    about = {"job": job, "set": set_id, "shard_epoch": shard_epoch, "rule": shard.rule.name}
    files = files_in(folder)
    with shard.saving, _with_views(shard, files) as segments:
        files.make()
        table = [(segment.span, _arrays(segment)) for segment in segments]
        needs = {since.path for segment in segments if (since := _view(segment).stored.since) is not None}
        written = write_shard(files, number, about, table, _stored(segments, files))
        for bucket in _buckets(segments):
            with bucket.lock:
                bucket.history.end(written.buckets[bucket.span.index])
        return Saved(written.manifest, written.nbytes, sorted(needs))


@contextmanager
def _with_views(shard: Shard, files: SetFiles) -> Iterator[list[Segment]]:
    """All segments, by rising index, with snapshot views; at the end all views are dropped, with their copies."""
    segments = [segment for _, segment in sorted(shard.segments.items())]
    changes = _changes_are_few(_buckets(segments), files)
    try:
        for segment in segments:
            with segment.lock:
                if changes and isinstance(segment, Bucket):
                    segment.begin_changes()
                else:
                    segment.begin_snapshot()
        yield segments
    finally:
        for segment in segments:
            with segment.lock:
                segment.snapshot_view = None
        for bucket in _buckets(segments):
            with bucket.lock:
                bucket.history.end(None)


def _buckets(segments: Sequence[Segment]) -> list[Bucket]:
    return [segment for segment in segments if isinstance(segment, Bucket)]


def _changes_are_few(buckets: Sequence[Bucket], files: SetFiles) -> bool:
    """Whether the set gets what has changed of these buckets since one earlier set that has all their rows.

    All of them are of one set, so that one file is kept for a shard.
    """
    if buckets and files.complete():  # the answer to an earlier call was lost: later sets may need what is there
        raise WriteFailed(f"{files}: the set is complete, and is not written again")
    _settle(buckets, files)
    places, named, now, rows = set[str](), 0, 0, 0
    for bucket in buckets:
        with bucket.lock:
            base, stamps = bucket.history.base, bucket.arena.rows().stamps
            if base is None or base.piece is None:
                return False
            places.add(base.piece.place)
            named += base.named
            now += base.count(stamps, bucket.applied)
            rows += bucket.arena.count
    return len(places) == 1 and 2 * now < rows and named + now < rows


def _settle(buckets: Sequence[Bucket], files: SetFiles) -> None:
    """Find which sets with all rows are complete; none counts where one of them, or the newest set, was found damaged.

    Nor where the newest is this one, which is then written for the second time.
    """
    places = {place for bucket in buckets for place in bucket.history.places}
    dropped = {place for place in places if place == files.place or files.beside(place).torn()}
    unsure = {one.piece.place for bucket in buckets for one in bucket.history.writes if one.piece and not one.complete}
    complete = {place for place in unsure - dropped if files.beside(place).complete()}
    for bucket in buckets:
        with bucket.lock:
            if dropped & bucket.history.places:
                bucket.history.clear()
            bucket.history.settle(complete)


def _view(segment: Segment) -> SnapshotView:
    assert segment.snapshot_view is not None
    return segment.snapshot_view


def _arrays(segment: Segment) -> dict[str, tuple[np.dtype[Any], int]]:
    """Names, element types and lengths of the arrays that the set is to hold of a segment with a snapshot view."""
    return {name: (array.dtype, array.size) for name, array in _view(segment).stored.arrays.items()}


def _stored(segments: Sequence[Segment], files: SetFiles) -> Iterator[StoredSegment]:
    """Each segment as of its snapshot view; one buffer, reused per segment, holds the arrays unchanged since."""
    bytes_of = (sum(dtype.itemsize * size for dtype, size in _arrays(segment).values()) for segment in segments)
    buffer = np.empty(max(bytes_of, default=0), np.uint8)
    for segment in segments:
        with segment.lock:
            view, segment.snapshot_view = _view(segment), None
            stored = view.materialize(buffer)
        if view.failed:
            raise WriteFailed(
                f"{files}: segment {segment.span.index} changed while the set was written, and there was no memory "
                "for a copy of it as it was"
            )
        yield stored


def restore(shard: Shard, folder: Path | SetFiles, set_id: str, job: str, shard_epoch: int, again: bool = False) -> int:
    """Load the shard's segments from a set and make the shard ready; returns the number of segments.

    A set whose manifests are invalid changes nothing. Where reading fails half-way the shard is empty, and cannot be
    made ready. `again`: as in `Segment.load`.

    Raises
    ------
    CorruptSnapshot, SnapshotError
        As `dbelief.checkpoint.shard_file.read_segments` does.
    """
    spans = [segment.span for segment in shard.segments.values()]
    segments = read_segments(folder, set_id, job, shard.rule.name, spans)
    shard.empty()
    for stored in segments:
        try:
            shard.load(stored, shard_epoch, again)
        except KeyError as error:
            raise CorruptSnapshot(f"{folder}: segment {stored.span.index} lacks {error}") from error
    shard.make_ready()
    return len(shard.segments)
