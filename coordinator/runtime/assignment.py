"""A shard's assignment message: its segments, and how they are updated and written."""

from __future__ import annotations

from dbelief.core.placement import Placement, ShardPlacement
from dbelief.job import Job, Sandblaster
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.wire.convert import spans_to_wire
from dbelief.rpc.wire.payloads import NUMBERS


def assignment(job: Job, placement: Placement, place: ShardPlacement) -> wire.Assignment:
    """Assignment message for the shard at `place`."""
    strategy, codecs = job.strategy, job.wire
    rule = strategy.at_shards
    return wire.Assignment(
        segments=spans_to_wire(placement.run(place)),
        rule=segments.Rule(name=rule.name, options=rule.model_dump(exclude={"name", "rate"})),
        staleness=strategy.staleness,
        staleness_aware=strategy.staleness_aware,
        ordered=isinstance(strategy, Sandblaster) and strategy.ordered,
        record=job.record,
        lock_free=not strategy.locked,
        progress_s=job.deadlines.progress_s,
        push_codec=NUMBERS.get(codecs.push.name, segments.CODEC_FP32),
        push_options=codecs.push.options,
        pull_codec=NUMBERS.get(codecs.pull, segments.CODEC_FP32),
        longest=max((span.length for span in placement.spans), default=0),
    )
