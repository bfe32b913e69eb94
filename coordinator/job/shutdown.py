"""Shutdown of a job: drain leases, choose the result, snapshot set, export, evaluate. No clock, no socket.

The evaluations come last, so that the model is written whatever becomes of them. Only where the best parameters are
kept, the last validation comes before, since it may choose the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dbelief.core.push import PARAMETERS

from ..core.progress import TrainingProgress
from ..core.states import DatasetSizes, ShutdownPhase
from ..scheduling.evaluations import Evaluations


class Shutdown:
    """Progress of one job's shutdown.

    Attributes
    ----------
    phase
        The phase in progress, once the job closes.
    vector
        The named vector that is the job's result.
    evaluate
        Whether there is a last validation and a test.
    trained
        Whether a limit of the job has ended training: evaluations are all that is left to a resumed run.
    chosen
        Whether the result is known: no replica is needed to write it.
    exported
        Whether the model is written.
    failures
        By data set, why its last evaluation has no result.
    """

    def __init__(self, shape: DatasetSizes, progress: TrainingProgress, evaluations: Evaluations) -> None:
        self.phase = ShutdownPhase.DRAIN
        self.vector = PARAMETERS
        self.evaluate = True
        self.trained = False
        self.chosen = False
        self.exported = False
        self.failures: dict[str, str] = {}
        self._pending: list[str] = []  # data sets whose last evaluation is missing; known once leases are drained
        self._shape = shape
        self._progress = progress
        self._evaluations = evaluations

    def advance(self, drained: bool, set_running: bool) -> bool:
        """Enter the next phase if nothing blocks the current one; returns whether it did."""
        blocked = {
            ShutdownPhase.DRAIN: not drained,
            ShutdownPhase.CHOOSE: self._evaluating or set_running,
            ShutdownPhase.SNAPSHOT: set_running,
            ShutdownPhase.EXPORT: not self.exported,
            ShutdownPhase.EVALUATE: self._evaluating,
            ShutdownPhase.DONE: True,
        }
        if blocked[self.phase]:
            return False
        self.phase = ShutdownPhase(self.phase + 1)
        if self.phase is ShutdownPhase.CHOOSE:
            self._choose()
        elif self.phase is ShutdownPhase.SNAPSHOT:
            self.chosen, self.vector = True, self._result()
        elif self.phase is ShutdownPhase.EVALUATE:
            self._request(self._pending)
        return True

    @property
    def _evaluating(self) -> bool:
        return self._evaluations.under_way or (self.evaluate and self._evaluations.queued)

    def _choose(self) -> None:
        # A pending evaluation was requested before the last pushes, or could not be stored: request it anew.
        self._pending = self._missing()
        self._evaluations.clear()
        if self._progress.keep_best:
            self._request(name for name in self._pending if name == "validation")

    def _missing(self) -> list[str]:
        """Data sets whose last evaluation has no result yet."""
        last = self._progress.last
        outdated = self._evaluations.queued or last is None or last.samples < self._progress.samples
        wanted = {"validation": self._shape.validation and outdated, "test": self._shape.test}
        return [name for name, some in wanted.items() if some and self.evaluate]

    def _request(self, sets: Iterable[str]) -> None:
        for name in sets:
            self._evaluations.request(name, self.vector if name == "test" else PARAMETERS)

    def _result(self) -> str:
        best = self._progress.best
        return best.vector if self._progress.keep_best and best is not None else PARAMETERS

    # -- evaluations -------------------------------------------------------------------------------------

    @property
    def evaluates(self) -> bool:
        """Whether this shutdown includes a last validation or a test."""
        return self.evaluate and bool(self._shape.validation or self._shape.test)

    @property
    def needs_replicas(self) -> bool:
        """Whether replicas have work left: a lease to finish, or an evaluation now or later."""
        return not self.chosen or bool(self._pending)

    def evaluated(self, name: str, failure: str = "") -> None:
        """Record that the evaluation of a data set is over; `failure`: why it has no result."""
        self.failures.pop(name, None)
        if failure:
            self.failures[name] = failure
        if name in self._pending:
            self._pending.remove(name)

    def stop_evaluating(self) -> None:
        """Leave out all evaluations, also those under way: their outcomes are ignored."""
        self.evaluate = False
        self._pending.clear()
        self._evaluations.cancel()

    def leave_out_evaluations(self, reason: str) -> str:
        """Go on without the evaluations that are left, for nothing can make them; the data set, "" for none."""
        left = self._pending if self.phase > ShutdownPhase.DRAIN else self._missing()
        name = next(iter(left), "")
        if name:
            self.failures[name] = reason
            self.stop_evaluating()
        return name

    # -- failures of shards ------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether the set or the model is being written, for which no replica is needed."""
        return self.phase in (ShutdownPhase.SNAPSHOT, ShutdownPhase.EXPORT)

    def restart_reads(self) -> None:
        """Repeat the phases that read the shards after one failed."""
        if self.writes:
            self.exported = False
            self.phase, self.vector = ShutdownPhase.CHOOSE, self._result()  # and nothing is evaluated before
        elif self.phase is ShutdownPhase.EVALUATE and not self._evaluations.busy:
            self._request(self._pending)  # it was dropped with the named vectors; the newest set has what is tested

    def evaluates_what_is_written(self, complete: bool) -> bool:
        """Whether the shards hold what was exported, where that is evaluated; `complete`: and all that was trained.

        They do not where the newest set was damaged, so that a shard was restored from an older one.
        """
        return self.phase is not ShutdownPhase.EVALUATE or (complete and self.vector == self._result())

    def exports(self, vector: str) -> bool:
        """Whether the export of this vector is due; not where another one was requested, or earlier phases repeat."""
        return self.phase is ShutdownPhase.EXPORT and vector == self.vector

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Progress of the shutdown, JSON-serializable."""
        names = ("vector", "evaluate", "trained", "chosen", "exported", "failures")
        rest = {name: getattr(self, name) for name in names}
        return {"step": int(self.phase), "pending": self._pending, **rest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a previous coordinator."""
        fields = dict(state)
        self.phase, self._pending = ShutdownPhase(fields.pop("step")), fields.pop("pending")
        vars(self).update(fields)
