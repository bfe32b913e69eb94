"""A shard from its assignment, a message of the coordinator: segments, rule and settings, and the loops compiled."""

from __future__ import annotations

from collections.abc import Callable

from dbelief.arrays import streaming_copy
from dbelief.core.push import AppliedPush
from dbelief.optim import Rule, make_row_rule, make_rule, round_mean, warm_up
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire.convert import spans_from_wire, table_from_wire
from dbelief.rpc.wire.payloads import Codecs
from dbelief.rpc.wire.row_payloads import compile_codecs

from .store.bucket import warm_up as warm_up_tables
from .store.quorum import Quorum
from .store.shard import Shard


def shard_of(assignment: wire.Assignment, record: Callable[[AppliedPush], None] | None) -> Shard:
    """Make the assigned shard, without initial values; `record` is called for each applied push, if the job has a log.

    Raises
    ------
    ValueError
        There is no such rule or codec, or an option is out of its range.
    """
    rule = make_rule(assignment.rule.name, dict(assignment.rule.options))
    rules = [make_row_rule(one.rule.name, dict(one.rule.options)) for one in assignment.tables]
    tables = dict(zip(map(table_from_wire, assignment.tables), rules, strict=True))
    _compile(rule, assignment)
    warm_up_tables(tables)
    compile_codecs(tables)
    return Shard(
        spans_from_wire(assignment.segments),
        rule,
        assignment.staleness if assignment.HasField("staleness") else None,
        record if assignment.record else None,
        assignment.staleness_aware,
        assignment.ordered,
        assignment.lock_free,
        _quorum(assignment),
        assignment.pull_differences,
        tables,
    )


def _compile(rule: Rule, assignment: wire.Assignment) -> None:
    """Compile or load the loops that the assigned work needs, before the first push needs them."""
    longest = max([assignment.max_segment_length, *(span.length for span in assignment.segments)], default=0)
    warm_up(rule, longest)
    streaming_copy.warm_up(4 * longest)
    if assignment.HasField("staleness") and not assignment.staleness:
        round_mean.warm_up(longest)
    options, differences = dict(assignment.push_options), assignment.pull_differences
    Codecs.numbered(assignment.push_codec, options, assignment.pull_codec, differences)


def _quorum(assignment: wire.Assignment) -> Quorum | None:
    quorum = assignment.quorum
    if not assignment.HasField("quorum"):
        return None
    return Quorum(quorum.replicas, quorum.grace_s if quorum.HasField("grace_s") else None, quorum.stale)
