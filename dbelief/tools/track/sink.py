"""What a tracker of experiments takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dbelief.telemetry.trackers import check_usable


class Sink(Protocol):
    """One tracker, for one run. A method that fails raises an exception of any kind.

    Attributes
    ----------
    state
        What JSON can hold and what a later sink of the same run needs to go on in place.
    """

    state: dict[str, Any]

    def begin(self, name: str, parameters: Mapping[str, str]) -> None:
        """Begin a run, or go on with it; `parameters`: the fields of the job file, by dotted name."""
        ...

    def numbers(self, values: Mapping[str, float], samples: int, time_s: float) -> None:
        """Record numbers after so many samples; `time_s`: seconds since 1970. Fewer samples than before: a resume."""
        ...

    def flush(self) -> None:
        """Store what was recorded so far."""
        ...

    def picture(self, name: str, file: Path) -> None:
        """Record a PNG file."""
        ...

    def model(self, file: Path) -> None:
        """Record the model file, where the tracker keeps files."""
        ...

    def end(self, done: bool, reason: str) -> None:
        """End the run; `done`: as planned."""
        ...


def open_sink(name: str, run: Path, state: Mapping[str, Any]) -> Sink:
    """The sink of a tracker for a run folder; `state`: of an earlier sink of the run, or empty.

    Raises
    ------
    UserError
        The tracker's library is not installed, or where it stores is not said.
    """
    check_usable(name)
    if name == "mlflow":
        from .mlflow_sink import MlflowSink

        return MlflowSink(run, state)
    from .tensorboard_sink import TensorBoardSink

    return TensorBoardSink(run, state)
