"""A shard's part of a snapshot set: a safetensors file of segments and a JSON manifest that describes it.

Set folder: `shard-3.safetensors`, `shard-3.json`, ... and, written last by the coordinator, `set.json`. A set is
complete when set.json exists; it loads on any number of shards, for each shard looks its segments up in every
manifest. Files are written under a temporary name, fsynced and renamed, so that a reader never sees half a file.
Every segment carries a CRC-32 over the bytes of all its vectors, and the manifest one over itself.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dbelief.errors import SnapshotError
from dbelief.layout import Span
from dbelief.optim import Rule
from dbelief.pushes import Pusher

from .segment import Segment
from .shard import Shard

FORMAT = 1


def _state_key(name: str) -> str:
    return f"rule/{name}"


def _row(segment: Segment, rule_state: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Manifest row and private copies of one segment, taken under its lock: consistent within the segment."""
    with segment.lock:
        arrays = {name: values.copy() for name, values in segment.vectors.items()}
        for name, values in zip(rule_state, segment.state, strict=True):
            arrays[_state_key(name)] = values.copy()
        ledger = [[vector, *pusher, last] for (vector, pusher), last in segment.applied_ledger().items()]
        version, rounds, lost = segment.version, segment.rounds, segment.lost
    crc = 0
    for name in sorted(arrays):
        crc = zlib.crc32(arrays[name].data, crc)
    row = {
        "index": segment.span.index,
        "start": segment.span.start,
        "length": segment.span.length,
        "version": version,
        "rounds": rounds,
        "lost": lost,
        "ledger": ledger,
        "vectors": sorted(arrays),
        "crc32": crc,
    }
    return row, arrays


def save(shard: Shard, folder: Path, number: int, set_id: str, job: str, shard_epoch: int) -> tuple[Path, int]:
    """Write the shard's file and manifest into the set's folder; returns the manifest and the bytes written.

    Cost: one private copy of the shard's vectors, taken segment by segment while training goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows, tensors = [], {}
    for _, segment in sorted(shard.segments.items()):
        row, arrays = _row(segment, shard.rule.state)
        rows.append(row)
        tensors.update({f"{row['index']}/{name}": values for name, values in arrays.items()})
    data = folder / f"shard-{number}.safetensors"
    temporary = data.with_suffix(".writing")
    save_file(tensors, temporary, metadata={"job": job, "set": set_id})
    _publish(temporary, data)
    manifest = folder / f"shard-{number}.json"
    content: dict[str, Any] = {
        "format": FORMAT,
        "job": job,
        "set": set_id,
        "shard": number,
        "shard_epoch": shard_epoch,
        "rule": shard.rule.name,
        "file": data.name,
        "segments": rows,
    }
    content["crc32"] = _checksum(content)
    temporary = manifest.with_suffix(".writing")
    temporary.write_text(json.dumps(content))
    _publish(temporary, manifest)
    return manifest, data.stat().st_size


def _checksum(content: dict[str, Any]) -> int:
    """CRC-32 of a manifest without its own checksum, however it is spaced."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _publish(temporary: Path, final: Path) -> None:
    """Make a finished file durable, then visible under its name."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(final)
    directory = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@dataclass(frozen=True)
class Loaded:
    """One segment as read from a set."""

    index: int
    vectors: Mapping[str, np.ndarray]
    state: tuple[np.ndarray, ...]
    version: int
    rounds: int
    ledger: Mapping[tuple[str, Pusher], int]
    lost: int


def read(folder: Path, set_id: str, job: str, spans: Iterable[Span], rule: Rule) -> Iterator[Loaded]:
    """Read segments out of a complete set.

    Raises
    ------
    SnapshotError
        Where a file is missing, torn, of another job, table, rule or a newer format, or a checksum does not agree.
    """
    left = {span.index: span for span in spans}
    for manifest in sorted(folder.glob("shard-*.json")):
        content = _manifest(manifest, set_id, job, rule)
        rows = [row for row in content["segments"] if row["index"] in left]
        for row in rows:
            span = left.pop(row["index"])
            if (row["start"], row["length"]) != (span.start, span.length):
                raise SnapshotError(
                    f"{manifest}: segment {span.index} holds {row['length']} numbers from {row['start']}; the job's "
                    f"table has {span.length} from {span.start}"
                )
        if rows:
            yield from _read_rows(folder / content["file"], rows, rule.state)
    if left:
        raise SnapshotError(f"{folder}: set {set_id} lacks segment {min(left)} ({len(left)} missing)")


def _manifest(path: Path, set_id: str, job: str, rule: Rule) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content["format"] > FORMAT:
            raise SnapshotError(f"{path}: format {content['format']} is newer than {FORMAT}, which this version reads")
        if content.pop("crc32") != _checksum(content):
            raise SnapshotError(f"{path}: does not match its checksum")
        if content["set"] != set_id or content["job"] != job:
            raise SnapshotError(
                f"{path}: belongs to job {content['job']}, set {content['set']}; wanted {job}, {set_id}"
            )
        if content["rule"] != rule.name:
            raise SnapshotError(f"{path}: holds the state of rule {content['rule']}; the job's is {rule.name}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path}: cannot be read as a manifest: {error!r}") from error
    return content


def _read_rows(file: Path, rows: list[dict[str, Any]], rule_state: tuple[str, ...]) -> Iterator[Loaded]:
    try:
        with safe_open(file, framework="numpy") as tensors:
            for row in rows:
                arrays = {name: tensors.get_tensor(f"{row['index']}/{name}") for name in row["vectors"]}
                crc = 0
                for name in sorted(arrays):
                    crc = zlib.crc32(np.ascontiguousarray(arrays[name]).data, crc)
                if crc != row["crc32"]:
                    raise SnapshotError(f"{file}: segment {row['index']} does not match its checksum")
                state = tuple(arrays.pop(_state_key(name)) for name in rule_state)
                ledger = {
                    (vector, Pusher(replica, incarnation, rank)): last
                    for vector, replica, incarnation, rank, last in row["ledger"]
                }
                yield Loaded(row["index"], arrays, state, row["version"], row["rounds"], ledger, row["lost"])
    except (OSError, SafetensorError, KeyError) as error:
        raise SnapshotError(f"{file}: cannot be read: {error!r}") from error


def restore(shard: Shard, folder: Path, set_id: str, job: str) -> int:
    """Load the shard's segments from a set, and be ready; returns how many segments."""
    spans = [segment.span for segment in shard.segments.values()]
    for one in read(folder, set_id, job, spans, shard.rule):
        shard.load(one.index, one.vectors, one.state, one.version, one.rounds, one.ledger, one.lost)
    shard.make_ready()
    return len(shard.segments)
