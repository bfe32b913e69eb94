"""Reports of a member while it does what no step comes out of, such as a metric of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dbelief.process.runtime import runtime
from dbelief.rpc.client.coordinator_client import MemberView
from dbelief.rpc.pb import coordination_pb2 as wire

ALIVE_EVERY_S = 1.0
"""Seconds between two reports."""


@contextmanager
def keep_alive(member: MemberView) -> Iterator[None]:
    """Report within the `with` block, however long it takes: a member without reports is removed.

    The thread of the block must not call the coordinator meanwhile.
    """
    ended = runtime.event()

    def report() -> None:
        while not ended.wait(ALIVE_EVERY_S):
            member.call("Report", wire.ReportRequest())

    thread = runtime.spawn(report, "alive")
    try:
        yield
    finally:
        ended.set()
        thread.join()
