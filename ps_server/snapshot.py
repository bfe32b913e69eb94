"""Saving and restoring a shard's file of a snapshot set (see `dbelief.checkpoint.shard_file`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.checkpoint.set_files import SetFiles, files_in
from dbelief.checkpoint.shard_file import StoredSegment, read_segments, write_shard
from dbelief.errors import CorruptSnapshot, WriteFailed
from dbelief.url import Url

from .store.segment import Segment
from .store.shard import Shard


def save(
    shard: Shard, folder: Path | SetFiles, number: int, set_id: str, job: str, shard_epoch: int
) -> tuple[Path | Url, int]:
    """Write the shard's file and manifest into the set's folder; returns the manifest and the file's bytes.

    The set shows the shard as of the start of this call: every segment gets a snapshot view, between two pushes, before
    the first is written, and training continues meanwhile. Of vectors other than "w" a set holds those that are
    complete in a segment then. A repeated call waits for a first one that is still writing, and writes again.

    Cost: a segment's lock is held for its snapshot view (10 us, and its ledger) and for one copy of it. Memory: one
    segment, and copies of what changes before it is written (see `store/copy_on_write.py`).

    Raises
    ------
    Rejected
        Where initial values are missing.
    WriteFailed
        Where a file cannot be written, or what changed could not be copied; names it.
    """
    about = {"job": job, "set": set_id, "shard_epoch": shard_epoch, "rule": shard.rule.name}
    with shard.saving, _with_views(shard) as segments:
        files = files_in(folder)
        files.make()
        table = [(segment.span, _arrays(segment)) for segment in segments]
        return write_shard(files, number, about, table, _stored(segments, files))


@contextmanager
def _with_views(shard: Shard) -> Iterator[list[Segment]]:
    """All segments, by rising index, with snapshot views; at the end all views are dropped, with their copies."""
    segments = [segment for _, segment in sorted(shard.segments.items())]
    try:
        for segment in segments:
            with segment.lock:
                segment.begin_snapshot()
        yield segments
    finally:
        for segment in segments:
            with segment.lock:
                segment.snapshot_view = None


def _arrays(segment: Segment) -> dict[str, tuple[np.dtype[Any], int]]:
    """Names, element types and lengths of the arrays that the set is to hold of a segment with a snapshot view."""
    assert segment.snapshot_view is not None
    return {name: (array.dtype, array.size) for name, array in segment.snapshot_view.stored.arrays.items()}


def _stored(segments: Sequence[Segment], files: SetFiles) -> Iterator[StoredSegment]:
    """Each segment as of its snapshot view; one buffer, reused per segment, holds the arrays unchanged since."""
    bytes_of = (sum(dtype.itemsize * size for dtype, size in _arrays(segment).values()) for segment in segments)
    buffer = np.empty(max(bytes_of, default=0), np.uint8)
    for segment in segments:
        with segment.lock:
            view, segment.snapshot_view = segment.snapshot_view, None
            assert view is not None
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
