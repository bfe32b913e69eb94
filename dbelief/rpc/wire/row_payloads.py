"""Payloads of packed rows of tables, by the codec that a table has for its pushes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dbelief.codec import make_codec, packed_rows, warm_up
from dbelief.core.push import Push
from dbelief.errors import Rejected
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.sparse.row_hash import table_salt, uniform_rows
from dbelief.sparse.table import SparseTable, unpack

from . import bulk
from .bulk import SegmentPayload

NUMBERS: Mapping[str, segments.Codec.ValueType] = {
    "fp16": segments.CODEC_ROWS_FP16,
    "bf16": segments.CODEC_ROWS_BF16,
    "int8": segments.CODEC_ROWS_INT8,
}
"""Wire number of packed rows by a codec, by the codec's name."""
_NAMES: Mapping[int, str] = {number: name for name, number in NUMBERS.items()}


def compile_codecs(tables: Iterable[SparseTable]) -> None:
    """Compile the codecs of tables, or load them from the cache, so that no message waits for it."""
    named = {name for one in tables for name in (one.push, one.pull)}
    for name in ("fp16", "bf16"):  # int8 has no loops
        if name in named:
            warm_up(make_codec(name, {}))


def part_of(index: int, version: int, packed: np.ndarray, table: SparseTable | None, push: Push) -> SegmentPayload:
    """Packed rows of a bucket, by the codec of their table; None: as they are. A retry has the same bytes."""
    if table is None or not packed.size:
        return bulk.part_of(index, version, packed)
    noise = None
    if table.push == "int8":
        salt = table_salt(push.sequence, f"{table.salt} {push.pusher.replica}")
        noise = uniform_rows(unpack(packed, table.width)[0], salt, table.width, 0.5)
    payload = packed_rows.encode(table.push, packed, table.width, noise)
    return SegmentPayload(index, version, 0, len(packed), NUMBERS[table.push], data=payload.data)


def is_encoded(part: SegmentPayload) -> bool:
    """Whether it has packed rows by a codec."""
    return part.codec in _NAMES


def decoded(part: SegmentPayload) -> np.ndarray:
    """Packed rows of a payload that `is_encoded`: (length,) float32.

    Raises
    ------
    Rejected
        The payload does not hold them.
    """
    data = memoryview(b"") if part.data is None else part.data
    if part.length > data.nbytes:  # each number has a byte: a few bytes claim no more
        raise Rejected(f"segment {part.index}: {data.nbytes} bytes are not {part.length} numbers of packed rows")
    out = np.empty(part.length, np.float32)
    try:
        packed_rows.decode(_NAMES[part.codec], data, out)
    except ValueError as error:
        raise Rejected(f"segment {part.index}: {error}") from None
    return out
