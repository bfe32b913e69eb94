"""Copies of the segments, as the registry names them: what a shard has acknowledged is in each copy that may lead.

A shard's owner by the stored placement, a follower that is stored as in sync, and one that is stored as promoted: each
of them may have to serve its segments alone at any moment. So each has every push that was acknowledged before, at
every step. A violation shows without the failures after which a client would see it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dbelief.core.push import PARAMETERS
from tests.simulation.models.marks import PROCESSES
from tests.simulation.world.scheduler import Process


class Copies:
    """All copies of the segments of one job.

    Parameters
    ----------
    process_at
        The process that serves an address; None where none does.
    """

    def __init__(self, process_at: Callable[[str], Process | None]) -> None:
        self._process_at = process_at
        self._controllers: dict[Process, Any] = {}
        self._places: list[dict[str, Any]] = []
        self.placed_in = 0  # epoch of the placement
        self._links: dict[int, dict[str, Any]] = {}
        self._addresses: dict[int, str] = {}  # by incarnation

    def started(self, process: Process, controller: Any) -> None:
        """Record the controller of a shard's process."""
        self._controllers[process] = controller

    def stored(self, values: Mapping[str, bytes | None]) -> None:
        """Record what a coordinator has written to the registry."""
        parts = {name: json.loads(text) for name, text in values.items() if text and name in _SECTIONS}
        if "placement" in parts:
            self._places, self.placed_in = parts["placement"]["places"], parts["placement"]["epoch"]
        if "state" in parts:
            self._links = {int(shard): link for shard, link in parts["state"]["chains"]["chains"].items()}
        for name, text in values.items():
            if text and name.startswith(("member:shard:", "member:follower:")):
                member = json.loads(text)
                self._addresses[member["incarnation"]] = member["address"]

    def segments(self) -> Iterator[tuple[str, int, Any]]:
        """Segments of all copies that may lead: whose it is, its number, and it, None if missing."""
        for place in self._places:
            shard, link = place["shard"], self._links.get(place["shard"], {})
            indices = [index for first, count in place["runs"] for index in range(first, first + count)]
            yield from self._of("owner", shard, place["address"], place["shard_epoch"], indices)
            role, heir = "promoted follower", link.get("promoted")
            if heir is None and link.get("whole"):
                role, heir = "in-sync follower", link["follower"]
            address = self._addresses.get(heir) if heir is not None else None
            if address is not None:
                yield from self._of(role, shard, address, None, indices)

    def _of(
        self, role: str, shard: int, address: str, epoch: int | None, indices: list[int]
    ) -> Iterator[tuple[str, int, Any]]:
        process = self._process_at(address)
        controller = self._controllers.get(process) if process is not None else None
        if process is None or not process.alive or controller is None or controller.shard is None:
            return
        if epoch is not None and controller.epoch != epoch:  # its former incarnation, which serves nothing any more
            return
        segments = _segments(controller)
        for index in indices:
            yield f"the {role} of shard {shard}, {process.name},", index, segments.get(index)

    def lacking(self, acknowledged: np.ndarray) -> Iterator[str]:
        """What copies that may lead lack of the samples acknowledged, by process; one text each."""
        for whose, index, segment in self.segments():
            if segment is None:
                yield f"{whose} does not have segment {index}"
            elif segment.busy:  # a push without the lock is within it: its repetition may be acknowledged meanwhile
                continue
            elif (found := segment.vectors.get(PARAMETERS)) is not None and (-found[PROCESSES:] < acknowledged).any():
                of = int(np.argmax(-found[PROCESSES:] < acknowledged))
                yield (
                    f"{whose} has {-found[PROCESSES + of]:g} samples of process {of} in segment {index}, and "
                    f"{acknowledged[of]:g} are acknowledged"
                )


_SECTIONS = ("placement", "state")


def _segments(controller: Any) -> dict[int, Any]:
    """All segments of a shard's process by number: served, received and not served yet, sent and not given up yet."""
    migration = controller._migration
    moving = {**migration._sent, **migration._received} if migration is not None else {}
    return {**moving, **controller.shard.segments}
