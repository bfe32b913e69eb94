"""The projection: what one write to the registry means, in the vocabulary of the model."""

from __future__ import annotations

import json
from typing import Any

from .log import Log
from .steps import Steps

LEADER, FOLLOWER, OTHER = 5, 7, 9
"""Incarnations of processes of shard 0."""


class Job:
    """A job of one shard; each `write` stores its members and its link."""

    def __init__(self) -> None:
        self._log = Log(addresses={str(incarnation): incarnation for incarnation in (LEADER, FOLLOWER, OTHER)})

    def write(self, leads: int, copies: int | None, **link: Any) -> None:
        """Store the members and the link; the placement has the first leader."""
        kinds = {leads: "shard", copies: "follower"}
        members = {
            f"member:{kind}:0": {"incarnation": one, "kind": kind, "number": 0, "address": str(one), "state": "alive"}
            for one, kind in kinds.items()
            if one is not None
        }
        state = {
            "state": "training",
            "chains": {"chains": {"0": {"follower": None, "whole": False, "promoted": None, **link}}},
            "resizing": {"running": False},
            "set": "a set",
        }
        place = {"shard": 0, "shard_epoch": 1, "address": str(LEADER), "runs": [[0, 1]]}
        values: dict[str, Any] = {
            "state": state,
            "member:follower:0": None,
            **members,
            "placement": {"epoch": 1, "places": [place]},
        }
        stored = {name: json.dumps(value).encode() if value is not None else None for name, value in values.items()}
        self._log.add("registry", 1, epoch=1, values=stored, registry=1)

    def steps(self) -> list[str]:
        """Steps after the first placement is stored."""
        (steps,) = Steps(self._log).all()
        return [str(step.event) for step in steps[4:]]


def test_a_follower_that_fails_before_the_promoted_one_is_in_service() -> None:
    job = Job()
    job.write(LEADER, FOLLOWER, epoch=1, follower=FOLLOWER, whole=True)
    job.write(FOLLOWER, OTHER, epoch=2, promoted=FOLLOWER)
    job.write(FOLLOWER, None, epoch=2, promoted=FOLLOWER)
    assert job.steps() == ["FAIL 0 0 promoted led", "JOIN 0 0", "FAIL 0 0"]
