"""Shutdown of a job: drain leases, last validation, test, snapshot set, export. No clock, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbelief.core.push import PARAMETERS

from ..core.progress import Progress
from ..core.states import DatasetSizes, ShutdownPhase
from ..scheduling.evaluations import Evaluations


class Shutdown:
    """Progress of one job's shutdown.

    Attributes
    ----------
    step
        The phase in progress, once the job closes.
    vector
        The named vector that is the job's result.
    evaluate
        Whether there is a last validation and a test.
    exported
        Whether the model is written.
    """

    def __init__(self, shape: DatasetSizes, progress: Progress, evaluations: Evaluations) -> None:
        self.phase = ShutdownPhase.DRAIN
        self.vector = PARAMETERS
        self.evaluate = True
        self.exported = False
        self._tested = False
        self._shape = shape
        self._progress = progress
        self._evaluations = evaluations

    def advance(self, drained: bool, set_running: bool) -> bool:
        """Enter the next phase if nothing blocks the current one; returns whether it did."""
        blocked = {
            ShutdownPhase.DRAIN: not drained,
            ShutdownPhase.VALIDATE: self._evaluating,
            ShutdownPhase.TEST: self._evaluating or set_running,
            ShutdownPhase.SNAPSHOT: set_running,
            ShutdownPhase.EXPORT: not self.exported,
            ShutdownPhase.DONE: True,
        }
        if blocked[self.phase]:
            return False
        self.phase = ShutdownPhase(self.phase + 1)
        self._tested = self._tested or self.phase > ShutdownPhase.TEST
        if self.phase is ShutdownPhase.VALIDATE:
            self._validate()
        elif self.phase is ShutdownPhase.TEST:
            self._test()
        return True

    @property
    def _evaluating(self) -> bool:
        return self._evaluations.under_way or (self.evaluate and self._evaluations.queued)

    def stop_evaluating(self) -> None:
        """Leave out the evaluations that no replica has begun: none is left that could."""
        self.evaluate = False
        self._evaluations.clear()

    @property
    def evaluates(self) -> bool:
        """Whether this shutdown includes a last validation or a test."""
        return self.evaluate and bool(self._shape.validation or self._shape.test)

    def exports(self, vector: str) -> bool:
        """Whether the export of this vector is due; not where another one was requested, or earlier phases repeat."""
        return self.phase is ShutdownPhase.EXPORT and vector == self.vector

    def state(self) -> dict[str, Any]:
        """Progress of the shutdown, JSON-serializable."""
        rest = {"vector": self.vector, "evaluate": self.evaluate, "exported": self.exported, "tested": self._tested}
        return {"step": int(self.phase), **rest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a previous coordinator."""
        self.phase, self.vector = ShutdownPhase(state["step"]), state["vector"]
        self.evaluate, self.exported, self._tested = state["evaluate"], state["exported"], state["tested"]

    def restart_reads(self) -> None:
        """Repeat the phases that read the shards after one failed, as far as replicas are left to run them."""
        self.exported = False
        if self.phase is ShutdownPhase.TEST and not self._tested:
            self.phase = ShutdownPhase.VALIDATE
        elif self.phase >= ShutdownPhase.TEST:
            self.phase = ShutdownPhase.TEST  # replicas have been stopped: none can evaluate
            tested, self.vector = self.vector, self._result()
            if self.vector != tested:
                self._progress.test = None  # the tested parameters are lost

    def shard_restored(self, complete: bool) -> None:
        """A shard was loaded from a set, which has all that was trained, or lacks some of what was tested."""
        if not complete:
            self._progress.test = None
            if not self._tested:  # a replica may have tested what the failed shard still answered, after its failure
                self.restart_reads()

    def _validate(self) -> None:
        last = self._progress.last
        # A pending evaluation was requested before the last pushes, or could not be stored: request it anew.
        due = self._evaluations.queued or last is None or last.samples < self._progress.samples
        self._evaluations.clear()
        if self.evaluate and self._shape.validation and due:
            self._evaluations.request("validation", PARAMETERS)

    def _result(self) -> str:
        best = self._progress.best
        return best.vector if self._progress.keep_best and best is not None else PARAMETERS

    def _test(self) -> None:
        self.vector = self._result()
        if self.evaluate and self._shape.test:
            self._evaluations.request("test", self.vector)
