"""The words in which people read the state of a job and of its members: one vocabulary for every display.

A job is

    waiting        for its shards and replicas
    initialising   its parameters
    training
    finishing      the last evaluations, snapshot and export
    done, failed

and a member

    waiting        for work, or for the job
    training, evaluating
    straggling     at work, and far slower than the others
    serving        a shard that answers calls
    restoring      a shard that loads a snapshot
    following      a follower that has all of its leader's records
    catching up    a follower that does not have them yet
    left, died

Registry, `events.jsonl` and metrics keep the names of the job's states that they have always had: "empty" is waiting,
"ready" is training, "closing" is finishing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_JOB = {"empty": "waiting", "ready": "training", "closing": "finishing"}

GONE = frozenset({"left", "died"})
"""States of a member that takes no part any more."""


def job_state(stored: str) -> str:
    """The displayed word for a job's state as it is stored; a displayed word is returned as it is."""
    return _JOB.get(stored, stored)


def member_state(member: Mapping[str, Any]) -> str:
    """The displayed word for a member, a row of `dbelief.monitor.status.to_dict`."""
    straggles = member.get("straggler") and member["state"] not in GONE
    return "straggling" if straggles else str(member.get("state", ""))
