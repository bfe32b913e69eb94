"""Client of the coordinator, and the membership of a shard or replica in a job."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from dbelief.core.layout import Layout
from dbelief.core.placement import Placement
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Rejected, RuntimeFailure, Unavailable
from dbelief.process.processors import ProcessorMeter
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import connecting, named_errors, open_channel, wait_ready
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import coordination_pb2_grpc as stubs
from dbelief.rpc.wire.convert import layout_to_wire, placement_from_wire, processors_to_wire

CALL_S = 10.0
"""Timeout of one call, in seconds: more than the time for which the coordinator holds a request for work (5 s)."""
PATIENCE_S = 30.0
"""Time for which calls are retried, unless a client has another one: it covers a coordinator failover."""

METER_S = 0.5
"""Seconds between two readings of the processors, at least."""

OVER = (wire.STATE_DONE, wire.STATE_FAILED)


class CoordinatorClient:
    """Calls to one coordinator.

    Parameters
    ----------
    address
        `host:port`.
    patience_s
        Time for which a call is retried while the coordinator is unavailable; None: `PATIENCE_S`. Every call is
        idempotent.

    Attributes
    ----------
    retries
        Calls that were retried, so far.
    """

    def __init__(self, address: str, patience_s: float | None = None) -> None:
        self.address = address
        self.patience_s = PATIENCE_S if patience_s is None else patience_s
        self.retries = 0
        self._channel = open_channel(address, "coordinator")
        self._stub = stubs.CoordinatorStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until the coordinator is reachable."""
        wait_ready(self._channel, timeout_s, f"coordinator at {self.address}", self.address)

    def connecting(self) -> AbstractContextManager[None]:
        """Within the `with` block, between calls that fail, the connection is made."""
        return connecting(self._channel)

    def call(self, method: str, request: Any, patience_s: float | None = None) -> Any:
        """Call a method, and retry while the coordinator is unavailable, for `patience_s` (None: the client's).

        Raises
        ------
        Rejected
            The coordinator refused the call.
        Unavailable
            It did not reply for `patience_s`.
        """
        until = runtime.monotonic() + (self.patience_s if patience_s is None else patience_s)
        while True:
            try:
                with named_errors(f"coordinator at {self.address}"):
                    return getattr(self._stub, method)(request, timeout=CALL_S)
            except Unavailable:
                if runtime.monotonic() >= until:
                    raise
            with self.connecting():
                runtime.sleep(0.2)
            self.retries += 1

    def status(self, job: bool = False, curves: bool = False) -> wire.StatusReply:
        """Status of the job; on request the job itself, and its loss and accuracy curves."""
        reply: wire.StatusReply = self.call("Status", wire.StatusRequest(job=job, curves=curves))
        return reply


class MemberView:
    """Membership without a heartbeat thread, for the ranks of a replica after its first: it polls on demand.

    Attributes
    ----------
    id, incarnation, run_id
        Assigned by the coordinator.
    placement
        Shards of the segments, once the coordinator has decided them.
    state, reason
        Of the job, as of the last heartbeat.
    lost
        Why this membership is over though the job may not be; "" while it is valid.
    confirmed_s
        When the last heartbeat that the leading coordinator answered as this member's was sent, by the monotonic clock;
        -inf before the first, and from when a leaving heartbeat is sent.
    beat_every_s
        Seconds between two heartbeats, as the coordinator sets them; 0: it does not, nor counts other calls as such.
    called_s
        When the last call that the coordinator answered was sent; -inf before the first.
    ending, may_leave
        Of a shard: it was requested to exit, and reports so in each heartbeat; the coordinator permits its exit.
    when_ended
        Called after each heartbeat with the highest generation of groups that is over.
    figures
        Of a shard: called before each heartbeat for its statistics.
    """

    def __init__(
        self, client: CoordinatorClient, role: wire.Role.ValueType, id: int, incarnation: int, run_id: int
    ) -> None:
        self.client = client
        self.role = role
        self.id = id
        self.incarnation = incarnation
        self.run_id = run_id
        self.placement: Placement | None = None
        self.state: wire.State.ValueType = wire.STATE_EMPTY
        self.reason = ""
        self.initialise = False
        self.lost = ""
        self.ending = False
        self.may_leave = False
        self.confirmed_s = self.called_s = -math.inf
        self.when_ended: Callable[[int], None] = lambda _: None
        self.figures: Callable[[], wire.ShardFigures | None] = lambda: None
        self.beat_every_s = 0.0
        self._changed = runtime.condition()
        self._meter, self._metered_s, self._answer_s = ProcessorMeter(), -math.inf, 0.0

    @property
    def over(self) -> bool:
        """Whether the job, or this membership, has ended."""
        return self.state in OVER or bool(self.lost)

    def beat(
        self, leaving: bool = False, reason: str = "", patience_s: float | None = None, failed: bool = False
    ) -> None:
        """Send a heartbeat to the coordinator, and store the job's state from the reply."""
        sent_s = runtime.monotonic()
        if leaving:
            self.confirmed_s = -math.inf  # before it is sent: the coordinator removes this member at once
        reply = self.client.call(
            "Beat",
            wire.BeatRequest(
                role=self.role,
                id=self.id,
                incarnation=self.incarnation,
                run_id=self.run_id,
                placement_epoch=self.placement.epoch if self.placement is not None else 0,
                leaving=leaving,
                reason=reason,
                failed=failed,
                shard=self.figures(),
                ending=self.ending,
                processors=self._processors(sent_s),
            ),
            patience_s,
        )
        self._answered(sent_s)
        with self._changed:
            self.state, self.reason, self.initialise = reply.state, reply.reason, reply.initialise
            self.may_leave = reply.may_leave
            if reply.member and not reply.uncertain and not leaving:
                self.confirmed_s = max(self.confirmed_s, sent_s)
            if reply.HasField("placement"):
                self.placement = placement_from_wire(reply.placement)
            self.beat_every_s = reply.beat_every_s or self.beat_every_s
            if not reply.member and not leaving:
                why = "no heartbeat for too long, or a failover before training began"
                self.lost = f"the coordinator removed this member: {why}"
            self._changed.notify_all()
        self.when_ended(reply.ended_generation)

    def call(self, method: str, request: wire.LeaseRequest | wire.ReportRequest) -> Any:
        """Call a method as this member; see `CoordinatorClient.call`. To the coordinator it is a heartbeat too."""
        request.replica, request.incarnation, request.run_id = self.id, self.incarnation, self.run_id
        sent_s = runtime.monotonic()
        if isinstance(request, wire.ReportRequest):
            report: wire.ReportRequest | None = request
        else:
            report = request.report if request.HasField("report") else None
        if report is not None and (use := self._processors(sent_s)) is not None:
            report.processors.CopyFrom(use)
        reply = self.client.call(method, request)
        self.called_s = sent_s
        if report is request:  # the answer to a request for work may be held
            self._answered(sent_s)
        if isinstance(reply, wire.ReportReply) and reply.beat_now:
            with contextlib.suppress(Unavailable):
                self.beat(patience_s=0.0)
        return reply

    def _processors(self, now_s: float) -> wire.ProcessorFigures | None:
        """Processor figures of this process, at intervals; None between them."""
        if now_s - self._metered_s < METER_S:
            return None
        self._metered_s = now_s
        return processors_to_wire(self._meter.read(), self._answer_s)

    def _answered(self, sent_s: float) -> None:
        took_s = runtime.monotonic() - sent_s
        self._answer_s = min(self._answer_s or took_s, took_s)

    def placed(self) -> Placement:
        """Current placement of the segments.

        Raises
        ------
        Rejected
            The job, or this membership, is over: its shards will not be available again.
        Unavailable
            The coordinator cannot be reached.
        """
        self.beat()
        if self.over:
            raise Rejected(self.lost or f"the job is over: {self.reason}")
        assert self.placement is not None
        return self.placement

    def leave(self, reason: str, failed: bool = False) -> None:
        """No operation: the client that joined sends the final heartbeat."""


class MembershipClient(MemberView):
    """This process's membership in a job: it joins, sends heartbeats from its own thread, and leaves at the end.

    Parameters
    ----------
    preferred_id
        Requested member number.
    name
        Name of its process, stable across restarts: joining again under it ends the earlier incarnation. None: a unique
        name.
    train_samples
        Number of its training samples; 0: none.

    Attributes
    ----------
    timeout_s
        No coordinator removes this member for so long after `confirmed_s`, in seconds.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        role: wire.Role.ValueType,
        job: str,
        address: str = "",
        layout: Layout | None = None,
        source_digest: str = "",
        preferred_id: int | None = None,
        name: str | None = None,
        train_samples: int = 0,
        samples: SampleForm | None = None,
    ) -> None:
        reply = client.call(
            "Join",
            wire.JoinRequest(
                role=role,
                job=job,
                address=address,
                name=name or f"{socket.gethostname()}:{os.getpid()}",
                restarted=name is not None,
                layout=layout_to_wire(layout) if layout is not None else [],
                source_digest=source_digest,
                preferred_id=preferred_id,
                train_samples=train_samples,
                samples=samples.text if samples is not None else "",
                token=runtime.random_id(),
            ),
        )
        super().__init__(client, role, reply.id, reply.incarnation, reply.run_id)
        self.job = job
        self.first_run_id: int = reply.first_run_id
        self.timeout_s: float = reply.heartbeat_timeout_s
        self._ended = runtime.event()
        self.beat()
        self._thread = runtime.spawn(self._keep_beating, "beat")

    def _keep_beating(self) -> None:
        heard_s = runtime.monotonic()
        # Until training begins, members wait for the reply to a heartbeat, so the interval is shorter.
        while not self._ended.wait(self._covered_s() or self._pause_s()):
            if self._covered_s():
                continue
            try:
                self.beat(patience_s=0.0)
                heard_s = runtime.monotonic()
            except RuntimeFailure as error:
                silent_s = runtime.monotonic() - max(heard_s, self.called_s)
                away = isinstance(error, Unavailable)
                if away and silent_s < self.client.patience_s:
                    continue
                with self._changed:
                    self.lost = f"{error} (no answer for {silent_s:.0f} s)" if away else str(error)
                    self._changed.notify_all()
            if self.over:
                return

    def _pause_s(self) -> float:
        """Seconds between two heartbeats now."""
        return (self.beat_every_s or self.timeout_s / 4) if self.state >= wire.STATE_READY else 0.05

    def _covered_s(self) -> float:
        """Seconds for which the last call still takes the place of a heartbeat, while the job trains."""
        left_s = self.called_s + self.beat_every_s - runtime.monotonic()
        return max(0.0, left_s) if self.state == wire.STATE_READY else 0.0

    def wait_for(self, happened: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `happened` is true after a heartbeat.

        Raises
        ------
        Rejected
            The job, or this membership, ended meanwhile.
        Unavailable
            It did not happen within `timeout_s`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: happened() or self.over, timeout_s):
                raise Unavailable(f"waited {timeout_s:g} s for {what}")
        if not happened():
            raise Rejected(self.lost or f"the job is over: {self.reason}")

    def leave(self, reason: str, failed: bool = False) -> None:
        """Send a leaving heartbeat and stop the thread; an unavailable coordinator is ignored."""
        self._ended.set()
        self._thread.join()
        if not self.lost:
            with contextlib.suppress(RuntimeFailure):
                self.beat(leaving=True, reason=reason, patience_s=0.0, failed=failed)
