"""What must be unchanged where a run is resumed."""

from __future__ import annotations

from contextlib import suppress

from dbelief.core.layout import Layout
from dbelief.core.sample_form import SampleForm
from dbelief.errors import SnapshotError, UserError
from dbelief.job import Job
from dbelief.rundir.place import place_of


def check_resumed(job: Job, layout: Layout, samples: SampleForm | None = None) -> None:
    """Check that the snapshot set to resume from has this layout, and samples of this form; a corrupt set is ignored.

    Raises
    ------
    UserError
        The model, its partition over ranks, or the form of the samples has changed.
    """
    place = place_of(job)
    sets = place.sets()
    for set_id in reversed(sets.started()):
        with suppress(SnapshotError, OSError, KeyError, ValueError):
            state = sets.read(set_id)
            if state["layout"] != layout.digest():
                raise UserError(
                    f"{place.where}: its snapshot sets are of another layout, for the model or the grid was another: "
                    "resume with those, or let a run of another name start_from this one"
                )
            held = SampleForm.parse(state["samples"]) if state.get("samples") else None  # an earlier version has none
            if samples is not None and held is not None and (what := samples.difference(held)):
                raise UserError(
                    f"{place.where}: its snapshot sets are of other data: now {what}; resume with that, or let a run "
                    "of another name start_from this one"
                )
            return
