"""The end of a job: leases in, a last validation, the test, a snapshot set, the export. No clock, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbelief.core.push import PARAMETERS

from ..core.progress import Progress
from ..core.states import Closing, Shape
from ..scheduling.evaluations import Evaluations


class Ending:
    """How far the end of one job has come.

    Attributes
    ----------
    step
        The step that is under way, once the job closes.
    vector
        The named vector that is the job's result.
    evaluate
        Whether there is a last validation and a test.
    exported
        Whether the model is written.
    """

    def __init__(self, shape: Shape, progress: Progress, evaluations: Evaluations) -> None:
        self.step = Closing.DRAIN
        self.vector = PARAMETERS
        self.evaluate = True
        self.exported = False
        self._tested = False
        self._shape = shape
        self._progress = progress
        self._evaluations = evaluations

    def moves_on(self, drained: bool, set_running: bool) -> bool:
        """Enter the next step if nothing holds this one; whether it did."""
        waits = {
            Closing.DRAIN: not drained,
            Closing.VALIDATE: self._evaluations.busy,
            Closing.TEST: self._evaluations.busy or set_running,
            Closing.SNAPSHOT: set_running,
            Closing.EXPORT: not self.exported,
            Closing.DONE: True,
        }
        if waits[self.step]:
            return False
        self.step = Closing(self.step + 1)
        self._tested = self._tested or self.step > Closing.TEST
        if self.step is Closing.VALIDATE:
            self._validate()
        elif self.step is Closing.TEST:
            self._test()
        return True

    @property
    def evaluates(self) -> bool:
        """Whether a last validation or a test is part of this end."""
        return self.evaluate and bool(self._shape.validation or self._shape.test)

    def state(self) -> dict[str, Any]:
        """How far it has come; JSON holds it."""
        kept = {"vector": self.vector, "evaluate": self.evaluate, "exported": self.exported, "tested": self._tested}
        return {"step": int(self.step), **kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over from another coordinator."""
        self.step, self.vector = Closing(state["step"]), state["vector"]
        self.evaluate, self.exported, self._tested = state["evaluate"], state["exported"], state["tested"]

    def again(self) -> None:
        """A shard died: the steps that read it are taken again, as far as replicas are still there to take them."""
        self.exported = False
        if self.step is Closing.TEST and not self._tested:
            self.step = Closing.VALIDATE
        elif self.step >= Closing.TEST:
            self.step = Closing.TEST  # replicas have been told of the end: there is nobody who could evaluate
            tested, self.vector = self.vector, self._result()
            if self.vector != tested:
                self._progress.test = None  # those parameters are gone

    def _validate(self) -> None:
        last = self._progress.last
        # One that waits here was asked for before the last pushes, or could not be kept: it is asked for anew.
        due = self._evaluations.asked or last is None or last.samples < self._progress.samples
        self._evaluations.clear()
        if self.evaluate and self._shape.validation and due:
            self._evaluations.ask("validation", PARAMETERS)

    def _result(self) -> str:
        best = self._progress.best
        return best.vector if self._progress.keep_best and best is not None else PARAMETERS

    def _test(self) -> None:
        self.vector = self._result()
        if self.evaluate and self._shape.test:
            self._evaluations.ask("test", self.vector)
