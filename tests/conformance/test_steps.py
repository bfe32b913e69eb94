"""The projection: what one write to the registry means, in the vocabulary of the model."""

from __future__ import annotations

import json
from typing import Any

from dbelief.core.push import Pusher

from .log import Log
from .steps import Steps

LEADER, FOLLOWER, OTHER = 5, 7, 9
"""Incarnations of processes of shard 0."""


class Job:
    """A job of one shard; each `write` stores its members and its link."""

    def __init__(self) -> None:
        self._log = Log(addresses={str(incarnation): incarnation for incarnation in (LEADER, FOLLOWER, OTHER)})

    def write(self, leads: int, copies: int | None, registry: int = 1, **link: Any) -> None:
        """Store the members and the link in a registry; the placement has the first leader."""
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
        self._log.add("registry", 1, epoch=1, values=stored, registry=registry)

    def push(self, pusher: Pusher) -> None:
        """Push 1 to segment 0, which the leader acknowledges."""
        about: dict[str, Any] = {"pusher": pusher, "sequence": 1}
        self._log.add("begin", 20, 0, **about, base=False, address=str(LEADER), late=False, exchange=False)
        self._log.add("reply", LEADER, **about)
        self._log.add("received", 20, 0, **about, address=str(LEADER))

    def acknowledged(self) -> list[list[set[int]]]:
        """By run of the job, the segments of each acknowledgement that its worker has received."""
        return [
            [step.entry.about["received"] for step in steps if step.entry and step.event.kind == "ACKNOWLEDGE"]
            for steps in Steps(self._log).all()
        ]

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


def test_a_push_that_is_begun_again_is_not_acknowledged_before() -> None:
    job = Job()
    job.write(LEADER, None, epoch=1)
    job.push(Pusher(0, 15))
    job.push(Pusher(0, 15))
    assert job.acknowledged() == [[set(), {0}]]


def test_incarnations_of_a_job_whose_registry_was_lost_are_others() -> None:
    """A resumed job issues those that the job before it issued after its set: their pushes are others."""
    job = Job()
    for registry in (1, 2):
        job.write(LEADER, None, registry, epoch=1)
        job.push(Pusher(0, 15))
    assert job.acknowledged() == [[{0}], [{0}]]
