"""Application of a leader's journal records to the follower's copies of its segments. Independent of the wire format.

The follower does not serve these segments until the coordinator has promoted it and committed them to it. Gradients
that are staged for a round stay staged: their sender retries the push, and gets its reply when the round is applied.
"""

from __future__ import annotations

import numpy as np

from dbelief.errors import Rejected

from ..programs import run
from ..store.journal import DropStagedRecord, ForgetRecord, JournalRecord, ProgramRecord, PushRecord, RoundRecord
from ..store.segment import VERSIONS_PER_INCARNATION, Segment
from ..store.shard import Shard


def apply(shard: Shard, segment: Segment, record: JournalRecord) -> None:
    """Apply a journal record to the follower's copy of a segment; the leader has already validated the push.

    Raises
    ------
    Rejected
        The segment does not have the version that the leader's had before the change.
    """
    with segment.lock:
        if segment.version != record.version:
            versions = f"version {segment.version} here, and {record.version} at the leader"
            raise Rejected(f"segment {record.index}: {versions}")
        if isinstance(record, PushRecord):
            _push(shard, segment, record)
        elif isinstance(record, RoundRecord):
            segment.close_round()
        elif isinstance(record, DropStagedRecord):
            segment.drop_staged(record.incarnations)
        elif isinstance(record, ForgetRecord):
            segment.forget(record.incarnations)
            shard.answers.forget(record.incarnations)
        elif isinstance(record, ProgramRecord):
            run(record.program, segment)


def _push(shard: Shard, segment: Segment, record: PushRecord) -> None:
    push = record.push
    if push.bundle is not None:
        segment.add(push, record.values, shard.ordered)
        return
    segment.ledger.rebase(push)
    if record.exchange:
        before = np.empty_like(record.values)
        shard.answers.keep(push, record.exchange, record.index, (segment.version, before))
        segment.exchange(push, record.values, before, rounds=shard.staleness == 0)
    elif record.skipped:
        segment.ledger.skip(push)
    elif push.assign:
        segment.assign(push, record.values, record.offset)
    elif shard.staleness == 0:
        segment.stage(push, record.values)
    else:
        segment.apply(push, record.values, record.offset, push.rate)
        # As `StalenessBarrier.applied`, which also updates the members.
        if shard.staleness is not None:
            segment.rounds = max(segment.rounds, push.clock + 1)


def promote(segment: Segment, shard_epoch: int) -> None:
    """Start a new incarnation of a segment: its versions begin above all that its leader may have returned.

    Nothing that was acknowledged is missing, so the bases remain: the leader may have failed before its reply to a push
    with a base arrived, and the same push, sent again, is to get the same count of lost pushes.
    """
    with segment.lock:
        segment.version = segment.first_version = max(shard_epoch * VERSIONS_PER_INCARNATION, segment.version + 1)
        segment.passed.clear()
