"""The coordinator's hand on the shards: commands with the leader's epoch, to all shards in order. Knows the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from dbelief.job import Downpour
from dbelief.placement import Place, Placement
from dbelief.pushes import PARAMETERS
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import parameters_pb2_grpc as stubs
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.channel import named_errors, open_channel
from dbelief.rpc.convert import spans_to_wire

TIMEOUT_S = 30.0
"""How long a shard may take to obey; writing or reading a snapshot may take `SNAPSHOT_S`."""
SNAPSHOT_S = 600.0


class Shards:
    """All shards of a job.

    Parameters
    ----------
    job
        The job's id.
    leader_epoch
        Epoch of this coordinator's leadership.
    """

    def __init__(self, job: str, leader_epoch: int) -> None:
        self.job = job
        self.leader_epoch = leader_epoch
        self.placement: Placement | None = None
        self._commands = 0
        self._channels: dict[str, grpc.Channel] = {}

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()

    def _stub(self, place: Place) -> stubs.ParametersStub:
        if place.address not in self._channels:
            self._channels[place.address] = open_channel(place.address)
        return stubs.ParametersStub(self._channels[place.address])

    def _command(self) -> wire.Command:
        self._commands += 1
        return wire.Command(leader_epoch=self.leader_epoch, id=self._commands)

    def _places(self) -> Sequence[Place]:
        return self.placement.places if self.placement is not None else ()

    def _configure(self, build: Callable[[Place], wire.ConfigureRequest]) -> list[wire.ConfigureReply]:
        replies = []
        for place in self._places():
            request = build(place)
            request.command.CopyFrom(self._command())
            with named_errors(f"shard {place.shard} at {place.address}"):
                replies.append(self._stub(place).Configure(request, timeout=TIMEOUT_S, wait_for_ready=True))
        return replies

    def assign(
        self,
        placement: Placement,
        strategy: Downpour,
        record: bool,
        progress_s: float | None = None,
    ) -> None:
        """Give every shard its segments, its rule and its life."""
        self.placement = placement
        rule = segments.Rule(name=strategy.rule.name, options=strategy.rule.model_dump(exclude={"name", "rate"}))

        def build(place: Place) -> wire.ConfigureRequest:
            return wire.ConfigureRequest(
                job=self.job,
                shard_epoch=place.shard_epoch,
                placement_epoch=placement.epoch,
                assignment=wire.Assignment(
                    segments=spans_to_wire(placement.run(place)),
                    rule=rule,
                    staleness=strategy.staleness,
                    staleness_aware=strategy.staleness_aware,
                    record=record,
                    progress_s=progress_s,
                ),
            )

        self._configure(build)

    def make_ready(self) -> None:
        """Let the shards accept pushes by the rule."""
        self._configure(lambda place: wire.ConfigureRequest(ready=True))

    def set_membership(self, member_epoch: int, rounds: Sequence[tuple[int, Sequence[int]]]) -> int:
        """Say who takes part in which clock; returns the highest clock that was pushed to any shard."""
        membership = wire.Membership(
            member_epoch=member_epoch,
            rounds=[wire.MembersFrom(clock=clock, replicas=replicas) for clock, replicas in rounds],
        )
        replies = self._configure(lambda place: wire.ConfigureRequest(membership=membership))
        return max((reply.clock for reply in replies), default=0)

    def fence(self, number: int, incarnation: int) -> tuple[int, int]:
        """Refuse a life, read what it had pushed into "w", and forget it; (lowest, highest) over all segments."""
        life = segments.Pusher(replica=number, incarnation=incarnation)
        self._configure(lambda place: wire.ConfigureRequest(fenced=[life]))
        rows = self.ledgers().get(incarnation, (0, 0))
        self._configure(lambda place: wire.ConfigureRequest(forgotten=[life]))
        return rows

    def ledgers(self) -> dict[int, tuple[int, int]]:
        """Per incarnation the lowest and the highest number applied to "w", over all segments of all shards."""
        found: dict[int, list[tuple[int, int]]] = {}
        holders = [place for place in self._places() if place.count]
        for place in holders:
            for row in self.stats(place, ledgers=True).ledgers:
                if row.vector == PARAMETERS:
                    found.setdefault(row.pusher.incarnation, []).append((row.lowest, row.highest))
        return {
            incarnation: (
                min(low for low, _ in rows) if len(rows) == len(holders) else 0,
                max(high for _, high in rows),
            )
            for incarnation, rows in found.items()
        }

    def stats(self, place: Place, ledgers: bool = False) -> wire.StatsReply:
        """Counters of one shard."""
        with named_errors(f"shard {place.shard} at {place.address}"):
            reply: wire.StatsReply = self._stub(place).Stats(
                wire.StatsRequest(job=self.job, ledgers=ledgers), timeout=TIMEOUT_S
            )
            return reply

    def snapshot(self, folder: Path, set_id: str) -> None:
        """Have every shard write its part of a set."""
        self._each(
            "Snapshot",
            lambda: wire.SnapshotRequest(command=self._command(), job=self.job, folder=str(folder), set=set_id),
        )

    def restore(self, folder: Path, set_id: str) -> None:
        """Have every shard load its segments from a set."""
        self._each(
            "Restore",
            lambda: wire.RestoreRequest(command=self._command(), job=self.job, folder=str(folder), set=set_id),
        )

    def _each(self, method: str, build: Callable[[], Any]) -> None:
        """Call all shards at the same time, then collect their answers."""
        calls = [
            (place, getattr(self._stub(place), method).future(build(), timeout=SNAPSHOT_S)) for place in self._places()
        ]
        for place, call in calls:
            with named_errors(f"shard {place.shard} at {place.address}"):
                call.result()

    def stop(self) -> None:
        """Let every shard end; one that is gone already is none of our business."""
        for place in self._places():
            request = wire.ConfigureRequest(command=self._command(), stop=True)
            try:
                self._stub(place).Configure(request, timeout=2.0)
            except grpc.RpcError:
                continue
