"""Builders of messages for the coordinator's commands to shards."""

from __future__ import annotations

from collections.abc import Iterable

from dbelief.core.placement import Placement, SegmentRange, ShardPlacement
from dbelief.job import Diloco, Job, Sandblaster
from dbelief.job.document.section import Section
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire.convert import spans_to_wire, table_to_wire
from dbelief.rpc.wire.payloads import NUMBERS
from dbelief.sparse.table import number_tables

from ..core.effects import SetMembership


def assignment(job: Job, placement: Placement, place: ShardPlacement) -> wire.Assignment:
    """The segments of the shard at `place`, and how they are updated and written."""
    strategy, codecs = job.strategy, job.wire
    return wire.Assignment(
        segments=spans_to_wire(placement.spans[index] for index in place.segments),
        rule=_rule(strategy.at_shards.name, strategy.at_shards),
        staleness=strategy.staleness,
        staleness_aware=strategy.staleness_aware,
        ordered=isinstance(strategy, Sandblaster) and strategy.ordered,
        record=job.record,
        lock_free=not strategy.locked,
        progress_s=job.deadlines.progress_s,
        push_codec=NUMBERS.get(codecs.push.name, segments.CODEC_FP32),
        push_options=codecs.push.options,
        pull_codec=NUMBERS.get(codecs.pull, segments.CODEC_FP32),
        pull_differences=job.pulls_differences,
        max_segment_length=max((span.length for span in placement.spans), default=0),
        shard=place.shard,
        quorum=_quorum(strategy),
        tables=_tables(job, placement),
    )


def _tables(job: Job, placement: Placement) -> list[wire.Table]:
    made = number_tables(job.tables, job.seed, placement.dense)
    rules = [_rule(one.rule.name, one.rule) for one in job.tables.values()]
    return [table_to_wire(table, rule) for table, rule in zip(made, rules, strict=True)]


def _rule(name: str, section: Section) -> segments.Rule:
    return segments.Rule(name=name, options=section.model_dump(exclude={"name", "rate"}))


def _quorum(strategy: object) -> wire.Quorum | None:
    if not isinstance(strategy, Diloco) or strategy.quorum is None:
        return None
    return wire.Quorum(replicas=strategy.quorum, grace_s=strategy.grace, stale=strategy.stale)


def pushers(incarnations: Iterable[int]) -> list[segments.Pusher]:
    """Pusher messages for these incarnations, for fences and ledger removal."""
    return [segments.Pusher(incarnation=incarnation) for incarnation in incarnations]


def holdings(runs: Iterable[SegmentRange]) -> wire.Holdings:
    """The segments that a shard owns."""
    return wire.Holdings(runs=[segments.SegmentRun(first=first, count=count) for first, count in runs])


def membership(action: SetMembership) -> wire.Membership:
    """The members of each clock."""
    rounds = [wire.MembersFrom(clock=clock, replicas=replicas) for clock, replicas in action.rounds]
    return wire.Membership(member_epoch=action.member_epoch, rounds=rounds)
