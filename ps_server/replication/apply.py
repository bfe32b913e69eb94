"""Application of a leader's journal records to the follower's copies of its segments. Independent of the wire format.

The follower does not serve these segments until the coordinator has promoted it and committed them to it. Gradients
that are staged for a round stay staged: their sender retries the push, and gets its reply when the round is applied.
"""

from __future__ import annotations

from dbelief.errors import Rejected

from ..programs import run
from ..store.journal import DropStagedRecord, ForgetRecord, JournalRecord, ProgramRecord, PushRecord, RoundRecord
from ..store.segment import VERSIONS_PER_INCARNATION, Segment
from ..store.shard import Shard


def apply(shard: Shard, segment: Segment, deed: JournalRecord) -> None:
    """Apply a journal record to the follower's copy of a segment; the leader has already validated the push.

    Raises
    ------
    Rejected
        The segment does not have the version that the leader's had before the change.
    """
    with segment.lock:
        if segment.version != deed.version:
            raise Rejected(f"segment {deed.index}: version {segment.version} here, and {deed.version} where it leads")
        if isinstance(deed, PushRecord):
            _push(shard, segment, deed)
        elif isinstance(deed, RoundRecord):
            segment.close_round(frozenset())
        elif isinstance(deed, DropStagedRecord):
            segment.drop_staged(deed.incarnations)
        elif isinstance(deed, ForgetRecord):
            segment.forget(deed.incarnations)
            shard.answers.forget(deed.incarnations)
        elif isinstance(deed, ProgramRecord):
            run(deed.program, segment)


def _push(shard: Shard, segment: Segment, deed: PushRecord) -> None:
    push = deed.push
    if push.bundle is not None:
        segment.add(push, deed.values, shard.ordered)
        return
    if deed.exchange:
        shard.answers.keep(push, deed.exchange, deed.index, segment.present())
    segment.ledger.rebase(push)
    if deed.skipped:
        segment.ledger.skip(push)
    elif push.assign:
        segment.assign(push, deed.values, deed.offset)
    elif shard.staleness == 0:
        segment.stage(push, deed.values)
    else:
        segment.apply(push, deed.values, deed.offset, push.rate)
        if not deed.exchange:  # as `StalenessBarrier.applied`, which also updates the members
            segment.rounds = max(segment.rounds, push.clock + 1)


def promote(segment: Segment, shard_epoch: int) -> None:
    """Start a new incarnation of a segment: its versions begin above all that its leader may have returned."""
    with segment.lock:
        segment.version = segment.first_version = max(shard_epoch * VERSIONS_PER_INCARNATION, segment.version + 1)
        segment.ledger.bases.clear()
        segment.passed.clear()
