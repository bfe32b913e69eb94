"""Between a shard and its part of a snapshot set (see `dbelief.parts`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dbelief.errors import NotWritten, Torn
from dbelief.parts import Stored, read_parts, state_key, write_part

from .segment import Segment
from .shard import Shard

Source = tuple[Segment, Mapping[str, np.ndarray]]
"""A segment, and what a set is to hold of it: the segment's own arrays, not copies."""


def save(shard: Shard, folder: Path, number: int, set_id: str, job: str, shard_epoch: int) -> tuple[Path, int]:
    """Write the shard's file and manifest into the set's folder; returns the manifest and the file's bytes.

    Cost: one segment is copied at a time, under its lock and into one buffer, so that each is caught between two
    pushes while training goes on. Of other vectors than "w" a set holds those that are whole in a segment at its
    beginning. A call that is repeated while the first still writes waits for it, and writes again.

    Raises
    ------
    Refused
        Where initial values are missing.
    NotWritten
        Where a file cannot be written; names it.
    """
    shard.check_complete()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritten(f"{folder}: cannot be made: {error.strerror or error}") from error
    about = {"job": job, "set": set_id, "shard_epoch": shard_epoch, "rule": shard.rule.name}
    with shard.saving:
        sources = [(segment, _arrays(segment)) for _, segment in sorted(shard.segments.items())]
        table = [(segment.span, {name: a.dtype for name, a in arrays.items()}) for segment, arrays in sources]
        return write_part(folder, number, about, table, _copies(sources))


def _arrays(segment: Segment) -> dict[str, np.ndarray]:
    with segment.lock:
        whole = {name: values for name, values in segment.vectors.items() if segment.holds(name)}
        return whole | {state_key(name): a for name, a in zip(segment.rule.state, segment.state, strict=True)}


def _copies(sources: Sequence[Source]) -> Iterator[Stored]:
    """Each segment as it is when it is asked for; one buffer holds them all in turn."""
    buffer = np.empty(max((sum(a.nbytes for a in arrays.values()) for _, arrays in sources), default=0), np.uint8)
    for segment, arrays in sources:
        copies, at = {}, 0
        with segment.lock:
            for name, values in arrays.items():
                copies[name] = buffer[at : at + values.nbytes].view(values.dtype)
                copies[name][:] = values
                at += values.nbytes
            ledger = {key: last for key, last in segment.applied_ledger().items() if key[0] in arrays}
            counts = segment.version, segment.applied, segment.rounds, segment.lost
        yield Stored(segment.span, *counts, ledger, copies)


def restore(shard: Shard, folder: Path, set_id: str, job: str, shard_epoch: int, again: bool = False) -> int:
    """Load the shard's segments from a set, and be ready; returns how many segments.

    A set that its manifests show to be wrong changes nothing. Where reading fails half-way the shard is empty, and
    cannot be made ready. `again`: as `Segment.load`.

    Raises
    ------
    Torn, SnapshotError
        As `dbelief.parts.read_parts` does.
    """
    spans = [segment.span for segment in shard.segments.values()]
    segments = read_parts(folder, set_id, job, shard.rule.name, spans)
    shard.empty()
    for stored in segments:
        try:
            shard.load(stored, shard_epoch, again)
        except KeyError as error:
            raise Torn(f"{folder}: segment {stored.span.index} lacks {error}") from error
    shard.make_ready()
    return len(shard.segments)
