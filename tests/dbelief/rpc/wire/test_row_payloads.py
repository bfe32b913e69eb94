"""Payloads of packed rows: the same at a retry, read without their table, and no longer than they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dbelief.codec.packed_rows import NAMES
from dbelief.core.push import Push, Pusher
from dbelief.errors import Rejected
from dbelief.job import Wire
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk, convert, row_payloads
from dbelief.rpc.wire.payloads import Codecs, form_of, numbers
from dbelief.sparse.row_limits import RowLimits
from dbelief.sparse.table import SparseTable, pack, unpack

TABLE = SparseTable("user", 3, 5, 0.5, 0.1, 4, 2, push="int8")
PUSH = Push(Pusher(1, 11), 7)
KEYS = np.array([-(2**62), 5, 2**62])
PACKED = pack(KEYS, np.random.default_rng(0).standard_normal((3, 3), dtype=np.float32))


MANY = pack(np.arange(50), np.random.default_rng(1).standard_normal((50, 3), dtype=np.float32))


def payload(table: SparseTable = TABLE, push: Push = PUSH, packed: np.ndarray = MANY) -> bytes:
    part = row_payloads.part_of(4, 9, packed, table, push)
    assert (part.index, part.version, part.length) == (4, 9, packed.size)
    return bytes(part.data or b"")


def test_a_retry_has_the_same_bytes_and_another_push_has_not() -> None:
    assert payload() == payload(push=replace(PUSH, base=3))
    others = [replace(PUSH, sequence=8), replace(PUSH, pusher=Pusher(2, 11))]
    assert payload() not in [payload(push=other) for other in others]
    assert payload() != payload(replace(TABLE, salt=6))


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_read_without_their_table(name: str) -> None:
    """So that a follower reads what its leader has received."""
    part = row_payloads.part_of(4, 9, PACKED, replace(TABLE, push=name), PUSH)
    keys, rows = unpack(numbers(part), 3)
    np.testing.assert_array_equal(keys, KEYS)
    np.testing.assert_allclose(rows, unpack(PACKED, 3)[1], atol=0.02)
    assert form_of(part) is part


@pytest.mark.parametrize("table", [None, TABLE])
def test_without_a_codec_or_rows_the_bytes_are_those_of_the_numbers(table: SparseTable | None) -> None:
    packed = PACKED if table is None else PACKED[:0]
    part = row_payloads.part_of(4, 9, packed, table, PUSH)
    assert (part.codec, bytes(part.data or b"")) == (segments.CODEC_FP32, packed.tobytes())
    assert form_of(part) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"length": 2**31}, "segment 4: 33 bytes are not 2147483648 numbers of packed rows"),
        ({"length": 14}, "segment 4: 33 bytes with 3 keys are not 14 numbers"),
        ({"data": None}, "segment 4: 0 bytes are not 15 numbers"),
    ],
)
def test_malformed_rows_are_refused(fields: dict[str, Any], why: str) -> None:
    data = payload(replace(TABLE, push="bf16"), packed=PACKED)[:33]
    part = bulk.SegmentPayload(4, 9, 0, 15, segments.CODEC_ROWS_BF16, data=memoryview(data))
    with pytest.raises(Rejected, match=why):
        numbers(replace(part, **fields))


@pytest.mark.parametrize(("push", "pull"), [("int8", "bf16"), ("fp32", None), ("bf16", "fp32")])
def test_a_table_goes_over_the_wire_with_its_codecs(push: str, pull: str | None) -> None:
    table = replace(TABLE, push=push, pull=pull, limits=RowLimits(after=2, counters=1024, recent=7))
    message = convert.table_to_wire(table, segments.Rule(name="sgd"))
    assert convert.table_from_wire(wire.Table.FromString(message.SerializeToString())) == table


def test_codecs_of_a_client_have_the_tables_that_are_encoded() -> None:
    plain = replace(TABLE, push="fp32", first=6)
    assert Codecs.of(Wire(), tables=[TABLE, plain]).tables == {4: TABLE, 5: TABLE}
