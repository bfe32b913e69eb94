"""A shard's file in a snapshot set: a safetensors file of segments, and a JSON manifest that describes it.

Set folder: `shard-3.safetensors`, `shard-3.json`, ... and, written last by the coordinator, `set.json`, which names the
shard files and the incarnation of each shard that wrote one. Every attempt at a set has its own folder, and a file of
another incarnation is not replaced: a suspended writer that resumes later cannot change its successor's set. A set
loads on any number of shards, for each of them looks up its segments in every manifest. A segment's vectors are
contiguous in the data file, in the order of their names; the rule's state is among them, under `rule/NAME`. Each
segment has a CRC-32 over all its bytes, and so have the file's header and the manifest itself. Of a table's bucket a
set may have what has changed since an earlier set, and names where that one has all its rows (`row_changes.py`).

Both directions process one segment at a time, in one buffer: no more than one segment is in memory beside the vectors;
three times a bucket where it is read with its changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dbelief.checkpoint.checksummed_json import parse_checksummed, with_checksum
from dbelief.checkpoint.row_changes import Piece, is_path, with_changes
from dbelief.checkpoint.safetensors_io import DTYPES, Tensor, TensorFile, dtype_name
from dbelief.checkpoint.set_files import COMMIT, SetFiles, files_in
from dbelief.core.absent import Missed
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import LedgerRow, Pusher
from dbelief.errors import CorruptSnapshot, SnapshotError, WriteFailed
from dbelief.url import Url

FORMAT = 2
_NUMBERS = ("index", "start", "length", "version", "applied", "rounds", "lost", "offset", "crc32")

Vectors = Mapping[str, tuple[np.dtype[Any], int]]
"""Names, element types and lengths of a segment's vectors."""


@dataclass(frozen=True)
class StoredSegment:
    """One segment of a snapshot set.

    Attributes
    ----------
    version, applied, rounds, lost, ledger, lost_of, missed
        As in the shard's segment.
    arrays
        Vectors by name, including the rule's state: (length,) each, but of a table's bucket; valid until the next
        iteration.
    since
        To be written: where an earlier set has all rows, of which `arrays` are the changes; None: they are all.
    """

    span: SegmentSpan
    version: int
    applied: int
    rounds: int
    lost: int
    ledger: Mapping[tuple[str, Pusher], LedgerRow]
    arrays: Mapping[str, np.ndarray]
    lost_of: Mapping[Pusher, int] = field(default_factory=dict)
    missed: Missed = ()
    since: Piece | None = None


class Written(NamedTuple):
    """A shard's part of a set: its manifest, the bytes of its data file, and where that has each bucket of a table."""

    manifest: Path | Url
    nbytes: int
    buckets: dict[int, Piece]


def state_key(name: str) -> str:
    """Name of a vector of the rule's state in a set."""
    return f"rule/{name}"


# -- writing -------------------------------------------------------------------------------------------------


def write_shard(
    folder: Path | SetFiles,
    shard: int,
    about: Mapping[str, Any],
    table: Iterable[tuple[SegmentSpan, Vectors]],
    segments: Iterable[StoredSegment],
) -> Written:
    """Write a shard's data file, then its manifest.

    Parameters
    ----------
    about
        Fields of the manifest beside the segments: job, set, rule and shard_epoch.
    table
        The segments in order, each with its vectors, which must be known before the first is written.
    segments
        The same segments in the same order.

    Raises
    ------
    WriteFailed
        A file cannot be written, or another incarnation of the shard has written its manifest. Names it; an existing
        file of that name is unchanged.
    """
    held = {span.index: (span, dict(sorted(vectors.items()))) for span, vectors in table}
    tensors: dict[str, Tensor] = {
        f"{index}/{name}": (dtype, (size,)) for index, (_, here) in held.items() for name, (dtype, size) in here.items()
    }
    files, data, manifest, rows = files_in(folder), f"shard-{shard}.safetensors", f"shard-{shard}.json", []
    buckets: dict[int, Piece] = {}
    with files.write(data) as whole:
        file = TensorFile(whole, tensors, {"job": about["job"], "set": about["set"]})
        for segment in segments:
            index, (_, vectors) = segment.span.index, held[segment.span.index]
            crc = 0
            for name in vectors:
                file.write(f"{index}/{name}", segment.arrays[name])
                crc = zlib.crc32(segment.arrays[name].data, crc)
            offset = file.offset(f"{index}/{next(iter(vectors))}")
            rows.append(_row(segment, vectors, offset, crc))
            if segment.span.by_key:
                sizes = [[name, dtype_name(dtype), size] for name, (dtype, size) in vectors.items()]
                buckets[index] = Piece(files.place, data, offset, crc, sizes)
        _refuse_another_life(files, manifest, about["shard_epoch"])
    content = {
        **about,
        "shard": shard,
        "file": data,
        "bytes": file.size,
        "header_crc32": file.header_crc32,
        "segments": rows,
    }
    with files.write(manifest) as whole:
        whole.write(with_checksum(FORMAT, content))
    return Written(files.at(manifest), file.size, buckets)


def _refuse_another_life(files: SetFiles, manifest: str, shard_epoch: int) -> None:
    """Raise WriteFailed where another incarnation has completed its file: this one was suspended meanwhile."""
    if files.exists(manifest) and (written := _checked(files, manifest)["shard_epoch"]) != shard_epoch:
        raise WriteFailed(
            f"{files.at(manifest)}: was written in shard epoch {written}, and stays; this shard is in {shard_epoch}"
        )


def _checked(files: SetFiles, name: str) -> dict[str, Any]:
    """Content of a file with a checksum."""
    return parse_checksummed(files.at(name), lambda: files.read(name), FORMAT)


def _row(segment: StoredSegment, vectors: Vectors, offset: int, crc32: int) -> dict[str, Any]:
    return {
        "index": segment.span.index,
        "start": segment.span.start,
        "length": segment.span.length,
        "version": segment.version,
        "applied": segment.applied,
        "rounds": segment.rounds,
        "lost": segment.lost,
        "lost_of": [[*pusher, lost] for pusher, lost in segment.lost_of.items()],
        "ledger": [[vector, *pusher, *row] for (vector, pusher), row in segment.ledger.items()],
        "vectors": [
            [name, dtype_name(dtype), *([] if size == segment.span.length else [size])]
            for name, (dtype, size) in vectors.items()
        ],
        **({"missed": segment.missed} if segment.missed else {}),
        **({"since": segment.since._asdict()} if segment.since else {}),
        "offset": offset,
        "crc32": crc32,
    }


# -- reading -------------------------------------------------------------------------------------------------


def read_segments(
    folder: Path | SetFiles, set_id: str, job: str, rule: str, spans: Iterable[SegmentSpan]
) -> Iterator[StoredSegment]:
    """Read segments from a set, in no defined order.

    All manifests are checked before this returns, the data as it is read.

    Raises
    ------
    CorruptSnapshot
        A file is missing or damaged; names it.
    SnapshotError
        The set is of another format, or holds another rule's state or another segment table.
    """
    files, left = files_in(folder), {span.index: span for span in spans}
    found: list[tuple[SetFiles, dict[str, Any], list[dict[str, Any]]]] = []
    for path, content in _manifests(files, set_id, job, rule):
        rows = [row for row in content.pop("segments") if row["index"] in left]
        for row in rows:
            span = left.pop(row["index"])
            if (row["start"], row["length"]) != (span.start, span.length):
                raise SnapshotError(
                    f"{path}: segment {span.index} holds {row['length']} numbers from {row['start']}; the job's "
                    f"table has {span.length} from {span.start}"
                )
        found.append((files, content, rows))
    if left:
        raise CorruptSnapshot(f"{folder}: set {set_id} lacks segment {min(left)} ({len(left)} missing)")
    return (stored for part in found for stored in _read(*part))


def verify_shards(folder: Path | SetFiles, set_id: str, job: str, rule: str, segments: int) -> None:
    """Read a complete set, and check that each of its segments is there once and matches its checksum.

    Raises
    ------
    CorruptSnapshot, SnapshotError
        As `read_segments` does.
    """
    files, seen = files_in(folder), set[int]()
    for path, content in _manifests(files, set_id, job, rule):
        rows = content["segments"]
        twice = sorted(seen & {row["index"] for row in rows})
        if twice:
            raise CorruptSnapshot(f"{path}: holds segment {twice[0]}, which another shard's manifest holds too")
        for stored in _read(files, content, rows):
            seen.add(stored.span.index)
    missing = sorted(set(range(segments)) - seen)
    if missing:
        raise CorruptSnapshot(f"{folder}: set {set_id} lacks segment {missing[0]} ({len(missing)} missing)")


def _manifests(files: SetFiles, set_id: str, job: str, rule: str) -> Iterator[tuple[Path | Url, dict[str, Any]]]:
    """All manifests of a set, each checked."""
    parts = _parts(files)
    for name in files.unlisted_manifests() if parts is None else sorted(parts):
        path, content = files.at(name), _checked(files, name)
        try:
            if content["set"] != set_id or content["job"] != job:
                raise CorruptSnapshot(
                    f"{path}: belongs to job {content['job']}, set {content['set']}; wanted {job}, {set_id}"
                )
            if content["rule"] != rule:
                raise SnapshotError(f"{path}: holds the state of rule {content['rule']}; the job's is {rule}")
            if parts is not None and content["shard_epoch"] != parts[name]:
                raise CorruptSnapshot(
                    f"{path}: of shard epoch {content['shard_epoch']}; the set has that of {parts[name]}"
                )
            _check_shape(content)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptSnapshot(f"{path}: is no manifest of a shard's part: {error!r}") from error
        yield path, content


def _parts(files: SetFiles) -> dict[str, int] | None:
    """The shard epoch of each shard file by its manifest's name; None in a set of an earlier version."""
    if not files.exists(COMMIT):
        return None
    parts: dict[str, int] | None = _checked(files, COMMIT).get("parts")
    return parts


def _check_shape(content: dict[str, Any]) -> None:
    """Raise KeyError or TypeError where a manifest has not the structure that `write_shard` writes."""
    file, numbers = content["file"], [content["bytes"], content["header_crc32"]]
    for row in content["segments"]:
        numbers += (row[name] for name in _NUMBERS)
        for vector, *counts in row["ledger"]:
            if len(counts) not in (4, 6):
                raise TypeError(f"ledger row of {len(counts) + 1} fields")
            numbers += counts
            if not isinstance(vector, str):
                raise TypeError(f"ledger row of {vector!r}")
        for start, stop, count in row.get("missed", ()):
            numbers += start, stop, count
        for name, dtype, *size in row["vectors"]:
            numbers += size
            if not isinstance(name, str) or dtype not in DTYPES or len(size) > 1:
                raise TypeError(f"vector {name!r} of type {dtype!r}")
        numbers += _numbers_of(Piece(**row["since"])) if "since" in row else ()
    odd = [number for number in numbers if type(number) is not int or number < 0]
    if odd or Path(file).name != file:
        raise TypeError(f"{odd[0] if odd else file!r} where a {'number' if odd else 'file name'} was expected")


def _numbers_of(piece: Piece) -> list[int]:
    """Numbers of a piece; raises TypeError or ValueError where it has another structure."""
    texts = [piece.place, piece.file, *(name for name, _, _ in piece.vectors)]
    odd = [text for text in texts if not isinstance(text, str)]
    odd += [dtype for _, dtype, _ in piece.vectors if dtype not in DTYPES]
    if odd or not is_path(piece.path):
        raise TypeError(f"{odd[0] if odd else piece.path!r} where all rows of a bucket were expected")
    return [piece.offset, piece.crc32, *(size for _, _, size in piece.vectors)]


def _read(files: SetFiles, content: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[StoredSegment]:
    """Read the segments of these rows from a data file, each verified by its checksum."""
    if not rows:
        return
    path = files.at(content["file"])
    try:
        with files.open(content["file"]) as file:
            _check_file(path, file, content)
            buffer = np.empty(max(_size(row) for row in rows), np.uint8)
            for row in rows:
                block = buffer[: _size(row)]
                file.seek(row["offset"])
                if file.readinto(block.data) != len(block) or zlib.crc32(block.data) != row["crc32"]:
                    raise CorruptSnapshot(f"{path}: segment {row['index']} does not match its checksum")
                stored = _stored(row, block)
                yield stored if stored.since is None else _whole(files, content["set"], stored, stored.since)
    except OSError as error:
        raise CorruptSnapshot(f"{path}: cannot be read: {error.strerror or error}") from error


def _whole(files: SetFiles, set_id: str, changes: StoredSegment, since: Piece) -> StoredSegment:
    """A bucket with all its rows: those of the earlier set's file, and what has changed since."""
    earlier = files.beside(since.place)
    where = f"{earlier.at(since.file)}: segment {changes.span.index}, which set {set_id} needs,"
    block = np.empty(sum(DTYPES[dtype].itemsize * size for _, dtype, size in since.vectors), np.uint8)
    try:
        with earlier.open(since.file) as file:
            file.seek(since.offset)
            if file.readinto(block.data) != len(block) or zlib.crc32(block.data) != since.crc32:
                raise CorruptSnapshot(f"{where} does not match its checksum")
        return replace(changes, arrays=with_changes(_arrays(since.vectors, block), changes.arrays), since=None)
    except OSError as error:
        raise CorruptSnapshot(f"{where} cannot be read: {error.strerror or error}") from error
    except (KeyError, IndexError, ValueError) as error:
        raise CorruptSnapshot(f"{where} has other rows than those that were changed: {error!r}") from error


def _check_file(path: Path | Url, file: BufferedReader, content: dict[str, Any]) -> None:
    size = file.seek(0, 2)
    if size != content["bytes"]:
        raise CorruptSnapshot(f"{path}: is {size} bytes long, and was written with {content['bytes']}")
    file.seek(0)
    length = file.read(8)
    if (
        zlib.crc32(file.read(min(size, int.from_bytes(length, "little"))), zlib.crc32(length))
        != content["header_crc32"]
    ):
        raise CorruptSnapshot(f"{path}: its header does not match its checksum")


def _size(row: dict[str, Any]) -> int:
    """Size of one segment in bytes."""
    return sum(DTYPES[dtype].itemsize * size for _, dtype, size in _vectors(row))


def _vectors(row: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Name, type and length of each vector; a length is written where it is not the segment's: of a table's bucket."""
    return [(name, dtype, *(size or [row["length"]])) for name, dtype, *size in row["vectors"]]


def _stored(row: dict[str, Any], block: np.ndarray) -> StoredSegment:
    """One segment, as views of its bytes."""
    # Earlier versions wrote no leases and positions.
    ledger = {(vector, Pusher(*counts[:3])): LedgerRow(*counts[3:]) for vector, *counts in row["ledger"]}
    lost_of = {Pusher(*pusher): lost for *pusher, lost in row.get("lost_of", ())}  # earlier versions wrote none
    missed = tuple((start, stop, count) for start, stop, count in row.get("missed", ()))
    span = SegmentSpan(row["index"], row["start"], row["length"])
    counts = row["version"], row["applied"], row["rounds"], row["lost"]
    since = Piece(**row["since"]) if "since" in row else None
    return StoredSegment(span, *counts, ledger, _arrays(_vectors(row), block), lost_of, missed, since)


def _arrays(vectors: Iterable[Sequence[Any]], block: np.ndarray) -> dict[str, np.ndarray]:
    """Vectors of these names, types and lengths, as views of their bytes."""
    arrays: dict[str, np.ndarray] = {}
    at = 0
    for name, dtype, size in vectors:
        end = at + size * DTYPES[dtype].itemsize
        arrays[name] = block[at:end].view(DTYPES[dtype])
        at = end
    return arrays
