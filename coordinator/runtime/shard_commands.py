"""Builders of messages for the coordinator's commands to shards."""

from __future__ import annotations

from collections.abc import Iterable

from dbelief.core.placement import SegmentRange
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments

from ..core.effects import SetMembership


def lives(incarnations: Iterable[int]) -> list[segments.Pusher]:
    """Pusher messages for these incarnations, for fences and ledger removal."""
    return [segments.Pusher(incarnation=incarnation) for incarnation in incarnations]


def holdings(runs: Iterable[SegmentRange]) -> wire.ConfigureRequest:
    """Request that sets which segments a shard owns."""
    rows = [segments.SegmentRun(first=first, count=count) for first, count in runs]
    return wire.ConfigureRequest(holdings=wire.Holdings(runs=rows))


def membership(action: SetMembership) -> wire.ConfigureRequest:
    """Request that sets the members of each clock."""
    rounds = [wire.MembersFrom(clock=clock, replicas=replicas) for clock, replicas in action.rounds]
    return wire.ConfigureRequest(membership=wire.Membership(member_epoch=action.member_epoch, rounds=rounds))
