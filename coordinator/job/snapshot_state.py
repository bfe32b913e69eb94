"""Job state in a snapshot set, beside the shard files, and how a job resumes from it. No file, no clock."""

from __future__ import annotations

from typing import Any

from dbelief.errors import UserError

from ..cluster.initialization import Initialization
from ..core.members import Members
from ..scheduling.training import Training


class SnapshotState:
    """Job state that is stored with a snapshot set."""

    def __init__(self, opening: Initialization, members: Members, training: Training) -> None:
        self._opening = opening
        self._members = members
        self._training = training

    def state(self, shard_epoch: int) -> dict[str, Any]:
        """State as of now, JSON-serializable."""
        assert self._opening.layout is not None
        assert self._opening.placement is not None
        dial = self._training.barrier
        return {
            "leases": self._training.leases.state(),
            "progress": self._training.progress.state(),
            "incarnations": self._members.incarnations,
            "batch": self._training.batch.state() if self._training.batch is not None else None,
            "pushes_twice": self._training.pushes_twice,
            "sets": self._training.snapshots.count,
            "clock": dial.clock if dial else 0,
            "member_epoch": dial.member_epoch if dial else 0,
            "segments": len(self._opening.placement.spans),
            "nominal_length": self._opening.nominal_length,
            "shard_epoch": shard_epoch,
            "layout": self._opening.layout.digest(),
            "boxes": self._opening.layout.rows(),  # so that the set is readable without the model's code
        }

    def begin(self, set_id: str, state: dict[str, Any]) -> None:
        """Restore what must hold before any member joins.

        Raises
        ------
        UserError
            The set was made from other data.
        """
        then, now = state["leases"]["epoch_samples"], self._training.leases.epoch_samples
        if then != now:
            raise UserError(f"snapshot set {set_id}: made of {then} training samples, and the job's data has {now}")
        # The set's ledgers have rows up to this incarnation: reusing one would have its pushes dropped as duplicates.
        self._members.incarnations = state["incarnations"]
        self._training.snapshots.count = state["sets"]

    def restore(self, state: dict[str, Any], ledgers: dict[int, tuple[int, int]]) -> None:
        """Resume, once the set is loaded into the shards."""
        # The ledgers are authoritative: what they lack is trained again, and not counted twice.
        twice, corrections = self._training.leases.restore(state["leases"], ledgers)
        self._training.pushes_twice = state["pushes_twice"] + twice
        self._training.progress.restore(state["progress"], corrections)
        self._training.progress.settle_all()  # every member that joins now is a new incarnation
        if self._training.batch is not None and state.get("batch"):  # sets of another strategy have no such state
            self._training.batch.rewind(state["batch"])
        dial = self._training.barrier
        if dial is not None:
            # There are no members yet: a change that the shards must receive.
            dial.clock, dial.member_epoch = state["clock"], state["member_epoch"] + 1
