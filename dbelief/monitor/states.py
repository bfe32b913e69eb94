"""Displayed state names of a job and of its members: one vocabulary for every display.

A job is

    waiting        for its shards and replicas
    initialising   its parameters
    training
    finishing      the last evaluations, snapshot and export
    done, failed

and a member

    waiting        for work, or for the job
    training, evaluating
    straggling     working, but far slower than the others
    serving        a shard that answers calls
    restoring      a shard that loads a snapshot
    following      a follower that is in sync with its leader
    catching up    a follower that still lacks records of its leader
    left, died

The registry, `events.jsonl` and metrics keep the original names of the job's states: "empty" is waiting, "ready" is
training, "closing" is finishing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_JOB = {"empty": "waiting", "ready": "training", "closing": "finishing"}

ENDED = frozenset({"done", "failed"})
"""States of a job that has ended."""
GONE = frozenset({"left", "died"})
"""States of a member that is no longer part of the job."""


def job_state(stored: str) -> str:
    """The displayed name of a job's stored state; a displayed name is returned unchanged."""
    return _JOB.get(stored, stored)


def member_state(member: Mapping[str, Any]) -> str:
    """The displayed state of a member, which is a row of `dbelief.monitor.status.to_dict`."""
    straggles = member.get("straggler") and member["state"] not in GONE
    return "straggling" if straggles else str(member.get("state", ""))
