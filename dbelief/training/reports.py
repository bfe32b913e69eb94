"""Reports of a member to the coordinator, which travel while it computes: one at a time, in their order.

On a slow link a round trip takes as long as many steps, and until another coordinator has taken over a report takes
some seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbelief.process.begun import Begun
from dbelief.process.runtime import runtime
from dbelief.rpc.client.coordinator_client import MemberView
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.sparse.row_cache import RowCache


def cache_figures(caches: Mapping[str, RowCache]) -> dict[str, Any]:
    """Fields of a report on these caches, by table; also while another thread reads from them."""
    hits = {name: cache.hits for name, cache in caches.items()}  # before the reads, of which they are some
    return {"cache_hits": hits, "cache_reads": {name: cache.reads for name, cache in caches.items()}}


class Reports:
    """Reports of one incarnation; any thread.

    A report that failed is raised by the next call of `answer` or `send`.
    """

    def __init__(self, member: MemberView) -> None:
        self._member = member
        self._lock = runtime.lock()  # guards what is under way
        self._under_way: Begun[wire.ReportReply] | None = None

    @property
    def travels(self) -> bool:
        """Whether a report is not answered yet."""
        under_way = self._under_way
        return under_way is not None and not under_way.done()

    def begin(self, request: wire.ReportRequest) -> wire.ReportReply | None:
        """Send a report on a thread of its own; the answer to the last one, which is waited for, if there was one."""
        with self._lock:
            reply = self._answered()
            self._under_way = Begun(lambda: self._call(request), "report")
        return reply

    def send(self, request: wire.ReportRequest) -> wire.ReportReply:
        """Send a report, and wait for its answer."""
        self.answer()
        return self._call(request)

    def answer(self) -> wire.ReportReply | None:
        """Wait for the report under way; its answer, once.

        Raises
        ------
        RuntimeFailure
            It failed.
        """
        with self._lock:
            return self._answered()

    def _answered(self) -> wire.ReportReply | None:
        under_way, self._under_way = self._under_way, None
        return None if under_way is None else under_way.result()  # bounded: every call has a deadline

    def _call(self, request: wire.ReportRequest) -> wire.ReportReply:
        reply: wire.ReportReply = self._member.call("Report", request)
        return reply
