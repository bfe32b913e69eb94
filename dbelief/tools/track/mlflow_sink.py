"""MLflow: a run of its tracking server, by its client.

The environment says where: MLFLOW_TRACKING_URI, and MLFLOW_EXPERIMENT_NAME, by default the job's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunStatus
from mlflow.tracking import MlflowClient

from dbelief.telemetry.trackers import ADDRESS

AT_ONCE = 500
"""Numbers of a request; a server takes 1,000 at most, and 100 parameters."""
PARAMETERS_AT_ONCE, LONGEST_VALUE = 100, 500


class MlflowSink:
    """See `Sink`. A resume goes on in the same run of MLflow."""

    def __init__(self, run: Path, state: Mapping[str, Any]) -> None:
        self.state = dict(state)
        self._client = MlflowClient(tracking_uri=os.environ[ADDRESS])
        self._name = run.name
        self._waiting: list[Metric] = []

    def begin(self, name: str, parameters: Mapping[str, str]) -> None:
        """See `Sink.begin`."""
        if "run" in self.state:
            self._client.update_run(self.state["run"], status=RunStatus.to_string(RunStatus.RUNNING))
            return
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
        known = self._client.get_experiment_by_name(title)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(title)
        self.state["run"] = self._client.create_run(experiment, run_name=self._name).info.run_id
        listed = [Param(field, value[:LONGEST_VALUE]) for field, value in parameters.items()]
        for first in range(0, len(listed), PARAMETERS_AT_ONCE):
            self._client.log_batch(self.state["run"], params=listed[first : first + PARAMETERS_AT_ONCE])

    def numbers(self, values: Mapping[str, float], samples: int, time_s: float) -> None:
        """See `Sink.numbers`."""
        self._waiting += [Metric(name, value, round(1_000 * time_s), samples) for name, value in values.items()]
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """See `Sink.flush`."""
        while self._waiting:
            self._client.log_batch(self.state["run"], metrics=self._waiting[:AT_ONCE])
            del self._waiting[:AT_ONCE]

    def picture(self, name: str, file: Path) -> None:
        """See `Sink.picture`."""
        self._client.log_artifact(self.state["run"], str(file), "pictures")

    def model(self, file: Path) -> None:
        """See `Sink.model`."""
        self._client.log_artifact(self.state["run"], str(file), "model")

    def end(self, done: bool, reason: str) -> None:
        """See `Sink.end`."""
        self.flush()
        self._client.set_tag(self.state["run"], "reason", reason)
        status = RunStatus.FINISHED if done else RunStatus.FAILED
        self._client.set_terminated(self.state["run"], RunStatus.to_string(status))
