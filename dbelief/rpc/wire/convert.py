"""Conversion between generated messages and the plain objects of the algorithms."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf.message import Message

from dbelief.core.absent import Ranges, checked
from dbelief.core.layout import Box, Kind, Layout, SegmentSpan
from dbelief.core.placement import Placement, SegmentRange, ShardPlacement
from dbelief.core.push import Push, Pusher
from dbelief.core.vector_program import Operation
from dbelief.errors import Rejected
from dbelief.process.processors import ProcessorUse
from dbelief.rpc.pb import coordination_pb2 as coordination
from dbelief.rpc.pb import parameters_pb2 as parameters
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.sparse.row_limits import RowLimits
from dbelief.sparse.table import SparseTable

from .payloads import NAMES, NUMBERS

_LARGEST = float(np.finfo(np.float32).max)


def program_to_wire(program: Iterable[Operation]) -> list[parameters.Operation]:
    """Encode a program over named vectors."""
    return [parameters.Operation(name=o.name, vectors=o.vectors, scalars=o.scalars, exempt=o.exempt) for o in program]


def program_from_wire(rows: Iterable[parameters.Operation]) -> tuple[Operation, ...]:
    """Decode a program; `dbelief.core.vector_program.validate` checks it."""
    return tuple(Operation(row.name, tuple(row.vectors), tuple(row.scalars), tuple(row.exempt)) for row in rows)


@functools.lru_cache(maxsize=256)
def target_to_wire(job: str, shard_epoch: int, run_id: int) -> parameters.Target:
    """Encode the shard incarnation that a request is addressed to, for messages, which copy it."""
    return parameters.Target(job=job, shard_epoch=shard_epoch, run_id=run_id)


@functools.lru_cache(maxsize=256)
def pusher_to_wire(pusher: Pusher) -> segments.Pusher:
    """Encode a pusher, for messages, which copy it."""
    return segments.Pusher(replica=pusher.replica, incarnation=pusher.incarnation, rank=pusher.rank)


def pusher_from_wire(message: segments.Pusher) -> Pusher:
    """Decode a pusher."""
    return Pusher(message.replica, message.incarnation, message.rank)


def push_from_wire(opening: parameters.PushOpening) -> Push:
    """Decode the opening of a push.

    Raises
    ------
    Rejected
        Its rate is negative, or not finite in float32; or it names absent ranges that are none, or of another kind of
        push; or it is packed, and no bundle.
    """
    rate = opening.rate
    if not 0 <= rate <= _LARGEST:
        raise Rejected(f"a push by the rate {rate:g}")
    if not 0 <= opening.row_factor <= _LARGEST:
        raise Rejected(f"a push by {opening.row_factor:g} times the rates of tables")
    if opening.packed and not opening.HasField("bundle"):
        raise Rejected("packed numbers in a push that is no bundle")
    return Push(
        pusher_from_wire(opening.pusher),
        opening.sequence,
        np.float32(rate),
        opening.samples,
        opening.vector,
        opening.rule.name == "assign",
        opening.clock,
        opening.base if opening.HasField("base") else None,
        opening.bundle if opening.HasField("bundle") else None,
        opening.lease,
        opening.position,
        _absent(opening) if opening.absent else (),
        opening.row_factor if opening.HasField("row_factor") else 1.0,
        opening.received_s,
        opening.packed,
    )


def _absent(opening: parameters.PushOpening) -> Ranges:
    if opening.rule.name == "assign" or opening.HasField("bundle"):
        raise Rejected("numbers that took no part, in a push that is not by a rule")
    try:
        return checked(opening.absent)
    except ValueError as error:
        raise Rejected(f"a push with {error}") from None


def push_to_wire(
    push: Push,
    target: parameters.Target,
    rule: segments.Rule,
    count: int = 0,
    answers: segments.Codec.ValueType = segments.CODEC_FP32,
) -> parameters.PushOpening:
    """Encode the opening of a push of `count` segments (0: all until the stream ends), or of an exchange."""
    return parameters.PushOpening(
        target=target,
        pusher=pusher_to_wire(push.pusher),
        sequence=push.sequence,
        base=push.base,
        clock=push.clock,
        rate=float(push.rate),
        samples=push.samples,
        vector=push.vector,
        rule=segments.Rule(name="assign") if push.assign else rule,
        bundle=push.bundle,
        segments=count,
        answers=answers,
        lease=push.lease,
        position=push.position,
        absent=push.absent or None,
        row_factor=push.row_factor if push.row_factor != 1.0 else None,
        received_s=push.received_s,
        packed=push.packed,
    )


def span_to_wire(span: SegmentSpan) -> segments.SegmentSpan:
    """Encode a row of the segment table."""
    return segments.SegmentSpan(index=span.index, start=span.start, length=span.length, kind=int(span.kind))


def span_from_wire(row: segments.SegmentSpan) -> SegmentSpan:
    """Decode a row of the segment table.

    Raises
    ------
    Rejected
        Its kind is unknown.
    """
    return SegmentSpan(row.index, row.start, row.length, _kind(row.kind))


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise Rejected(f"a tensor of kind {number}, which is unknown") from None


def spans_to_wire(spans: Iterable[SegmentSpan]) -> list[segments.SegmentSpan]:
    """Encode rows of the segment table."""
    return [span_to_wire(span) for span in spans]


def spans_from_wire(rows: Iterable[segments.SegmentSpan]) -> tuple[SegmentSpan, ...]:
    """Decode rows of the segment table."""
    return tuple(span_from_wire(row) for row in rows)


def table_to_wire(table: SparseTable, rule: segments.Rule) -> parameters.Table:
    """Encode a table with its rule."""
    limits = table.limits
    return parameters.Table(
        name=table.name,
        width=table.width,
        salt=table.salt,
        limit=table.limit,
        rate=table.rate,
        first=table.first,
        buckets=table.count,
        rule=rule,
        after=limits.after,
        counters=limits.counters,
        most=limits.most,
        recent=limits.recent,
        ttl_s=limits.ttl_s or 0,
        push_codec=NUMBERS.get(table.push, segments.CODEC_FP32),
        pull_codec=None if table.pull is None else NUMBERS.get(table.pull, segments.CODEC_FP32),
    )


def table_from_wire(table: parameters.Table) -> SparseTable:
    """Decode a table."""
    most = table.most if table.HasField("most") else None
    recent = table.recent if table.HasField("recent") else None
    limits = RowLimits(max(1, table.after), table.counters, most, recent, table.ttl_s or None)
    salt, limit, first, count = table.salt, table.limit, table.first, table.buckets
    push, pull = NAMES.get(table.push_codec, "fp32"), NAMES.get(table.pull_codec, "fp32")
    codecs = push, pull if table.HasField("pull_codec") else None
    return SparseTable(table.name, table.width, salt, limit, table.rate, first, count, limits, *codecs)


def placement_to_wire(placement: Placement) -> coordination.Placement:
    """Encode a placement."""
    return coordination.Placement(
        placement_epoch=placement.epoch,
        segments=spans_to_wire(placement.spans),
        shards=[
            coordination.ShardPlace(
                shard=p.shard,
                address=p.address,
                shard_epoch=p.shard_epoch,
                run_id=p.run_id,
                runs=[segments.SegmentRun(first=first, count=count) for first, count in p.runs],
            )
            for p in placement.places
        ],
    )


def placement_from_wire(message: coordination.Placement) -> Placement:
    """Decode a placement."""
    return Placement(
        message.placement_epoch,
        spans_from_wire(message.segments),
        tuple(ShardPlacement(p.shard, p.address, p.shard_epoch, _runs(p), p.run_id) for p in message.shards),
    )


def _runs(place: coordination.ShardPlace) -> tuple[SegmentRange, ...]:
    return tuple((run.first, run.count) for run in place.runs)


def layout_to_wire(layout: Layout) -> list[coordination.Tensor]:
    """Encode a layout."""
    return [
        coordination.Tensor(
            name=b.name,
            shape=b.shape,
            rank=b.rank,
            box_start=b.start,
            box_stop=b.stop,
            also=b.also,
            kind=int(b.kind),
            dtype=b.dtype,
        )
        for b in layout.boxes
    ]


def layout_from_wire(rows: Iterable[coordination.Tensor]) -> Layout:
    """Decode a layout; an empty box stands for the complete tensor."""
    return Layout(
        tuple(
            Box(
                row.name,
                tuple(row.shape),
                row.rank,
                tuple(row.box_start) or (0,) * len(row.shape),
                tuple(row.box_stop) or tuple(row.shape),
                tuple(row.also),
                _kind(row.kind),
                row.dtype or "float32",
            )
            for row in rows
        )
    )


def processors_to_wire(use: ProcessorUse, answer_s: float = 0.0) -> coordination.ProcessorFigures:
    """The processors of a process; `answer_s`: shortest time of an answer from the coordinator."""
    return coordination.ProcessorFigures(**use._asdict(), answer_s=answer_s)


def message_row(message: Message) -> dict[str, Any]:
    """Plain fields of a message by name."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
