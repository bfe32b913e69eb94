"""Preparation before training: one layout, placement of segments on shards, initial values pushed exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dbelief.core.layout import FROZEN, Layout, assign_segments, nominal_length
from dbelief.core.placement import Placement, ShardPlacement, runs_of
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Rejected
from dbelief.sparse.table import SparseTable, assign_buckets
from dbelief.sparse.tables_read import tables_read

from ..core.members import Member


class Initialization:
    """Initialization state of one job.

    Parameters
    ----------
    shards
        Planned number of shards.
    resumed
        State of the snapshot set that the job resumes from; None: the job starts anew.
    train_samples
        Training samples that the coordinator finds in the job's data; 0: the job has none.
    tables
        Tables of the job, behind so many dense segments.

    Attributes
    ----------
    layout, source_digest, placement
        Set once they are known.
    samples
        Form of the data's samples, once a member with data has joined; None before, and where the job has none.
    assigned
        Whether every shard has received its segments.
    run_id, first_run_id
        Id of the run: see `JobMachine.run_id`; and of the run that was started anew, which this one resumes.
    """

    def __init__(
        self,
        shards: int,
        resumed: dict[str, Any] | None,
        train_samples: int = 0,
        run_id: int = 0,
        tables: Callable[[int], Sequence[SparseTable]] = lambda first: (),
    ) -> None:
        self.layout: Layout | None = None
        self.placement: Placement | None = None
        self.assigned = False
        self.run_id = run_id
        self.first_run_id = int((resumed or {}).get("first_run_id") or run_id)
        self._shards = shards
        self._resumed = resumed
        self._train_samples, self._tables = train_samples, tables
        self.source_digest = ""
        self.samples = self._samples_of_set()
        self._initialiser: int | None = None
        self._complete = resumed is not None

    @property
    def complete(self) -> bool:
        """Whether the shards have all initial values, as far as is known."""
        return self._complete

    def check_model(
        self, layout: Layout, source_digest: str, train_samples: int = 0, samples: SampleForm | None = None
    ) -> None:
        """Compare a replica's model and data with the job's; those of the first replica become the job's.

        Raises
        ------
        Rejected
            The layout, the source, the number of training samples or the form of the samples differs.
        """
        if train_samples and self._train_samples and train_samples != self._train_samples:
            # Leases are ranges of a permutation of all samples: they mean nothing in one of another length.
            raise Rejected(
                f"this replica's data holds {train_samples:,} training samples, the job's {self._train_samples:,}: "
                "is the source on this machine the same, and complete?"
            )
        if samples is not None and self.samples is not None and (what := samples.difference(self.samples)):
            raise Rejected(f"this replica's data is not the job's: {what}; is the source on this machine the same?")
        if self.layout is None:
            if self._resumed is not None and layout.digest() != self._resumed["layout"]:
                raise Rejected(
                    "this replica's model has another layout than the snapshot set that the job resumes from"
                )
            self.layout, self.source_digest = layout, source_digest
        elif layout.digest() != self.layout.digest():
            raise Rejected(
                f"this replica's model has another layout than the job's: {layout.difference(self.layout)}; are all "
                "workers given the same code?"
            )
        elif tables_read(source_digest) != tables_read(self.source_digest):
            mine, others = tables_read(source_digest), tables_read(self.source_digest)
            raise Rejected(
                f"this replica's module reads rows of {mine}, and that of the job of {others}: are all workers given "
                "the same code?"
            )
        elif source_digest != self.source_digest and FROZEN in source_digest:
            raise Rejected("this replica's frozen parameters are not the job's: load the same file in every script")
        elif source_digest != self.source_digest:
            raise Rejected("this replica's model source differs from the job's: copy the same file to every machine")
        self.samples = self.samples or samples

    @property
    def nominal_length(self) -> int:
        """Numbers in a full segment; fixed for the job's lifetime, whatever the number of shards after resharding."""
        if self._resumed is not None:
            return int(self._resumed["nominal_length"])
        assert self.layout is not None
        return nominal_length(self.layout.size, self._shards)

    def create_placement(self, shards: Sequence[Member], shard_epoch: int) -> Placement:
        """Assign every shard its range of segments and return the placement."""
        assert self.layout is not None
        dense = self.layout.segments(self.nominal_length)
        runs = assign_segments(dense, self._shards)
        tables = self._tables(len(dense))
        buckets = [span for table in tables for span in table.spans(self.layout.size)]
        held = zip(runs, assign_buckets(tables, self._shards), strict=True)
        runs_held = [runs_of([*range(first, first + count), *own]) for (first, count), own in held]
        rows = zip(shards, runs_held, strict=True)
        places = tuple(ShardPlacement(m.number, m.address, shard_epoch, run, self.run_id) for m, run in rows)
        self.placement = Placement(1, (*dense, *buckets), places)
        return self.placement

    def replace(self, place: ShardPlacement) -> None:
        """Replace the place of one shard, which has a new address and incarnation."""
        assert self.placement is not None
        places = tuple(place if old.shard == place.shard else old for old in self.placement.places)
        self.placement = Placement(self.placement.epoch + 1, self.placement.spans, places)

    def require_reinitialization(self) -> None:
        """Require the initial values to be pushed again, as a portion of them is lost."""
        self._complete = False
        self._initialiser = None

    def restore(
        self, layout: Layout, source_digest: str, placement: Placement, samples: SampleForm | None = None
    ) -> None:
        """Restore the state from a previous coordinator that had initialized the job."""
        self.layout, self.source_digest, self.placement, self.samples = layout, source_digest, placement, samples
        self.assigned = self._complete = True

    def initialises(self, incarnation: int) -> bool:
        """Whether this incarnation is to push the initial values: the first to request, another only after its end."""
        if not self.assigned or self._complete:
            return False
        if self._initialiser is None:
            self._initialiser = incarnation
        return self._initialiser == incarnation

    def initialised(self, incarnation: int) -> bool:
        """Record that all initial values are acknowledged; True only the first time."""
        if self._complete or incarnation != self._initialiser:
            return False
        self._complete = True
        return True

    def pusher_lost(self, incarnation: int, last: bool) -> None:
        """Record the end of an incarnation; `last`: no other replica or client is left."""
        if self._initialiser == incarnation:
            self._initialiser = None
        if last and self.placement is None:  # nothing depends on the model yet: the next replica may have another
            self.layout, self.source_digest, self.samples = None, "", self._samples_of_set()

    def _samples_of_set(self) -> SampleForm | None:
        text = (self._resumed or {}).get("samples")  # an earlier version did not write it
        return SampleForm.parse(text) if text else None
