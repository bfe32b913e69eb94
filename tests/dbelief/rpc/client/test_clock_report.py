"""A report of a clock, which transfers no values."""

from __future__ import annotations

import numpy as np

from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement
from dbelief.core.push import Pusher
from dbelief.rpc.client.shard_call import ClockReport
from dbelief.rpc.wire import bulk


def test_numbers_of_a_shard_that_was_restored_meanwhile_are_left_out() -> None:
    run = [SegmentSpan(0, 0, 3), SegmentSpan(1, 3, 3)]
    report = ClockReport("job", ShardPlacement(0, "host:1", 2, ((0, 2),)), run, 5, Pusher(1, 2), 2)
    report.unshare()  # as where the shard's memory is gone: it then asks for numbers, too
    report.store([bulk.part_of(0, 9, np.ones(3, np.float32)), bulk.SegmentPayload(1, 9, length=3, unchanged=True)])
    assert (report.done, report.received, report.passed) == (2, 12, 0)
