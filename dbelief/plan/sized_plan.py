"""Exchanges of a job of which only the number of parameters is known: a script's, or that of a Python model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dbelief.errors import UserError
from dbelief.job import Job, PythonModel, ScriptModel

from .exchange import Exchange, exchange_of
from .speeds import Speeds


@dataclass(frozen=True)
class SizedPlan:
    """The exchanges of a job, by its number of parameters.

    Attributes
    ----------
    samples
        Of a mini-batch.
    """

    job: str
    parameters: int
    samples: int
    speeds: Speeds
    exchange: Exchange

    def described(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "job": self.job,
            "parameters": self.parameters,
            "samples": self.samples,
            **asdict(self.speeds),
            "exchange": self.exchange.described(),
        }


def plan_sized(job: Job, parameters: int, speeds: Speeds) -> SizedPlan:
    """Plan the exchanges of a job with so many trained parameters.

    Raises
    ------
    UserError
        The job's model has its own number of parameters, or the job has no exchanges through shards.
    """
    if not isinstance(job.model, ScriptModel | PythonModel):
        raise UserError("--parameters is for the model of a script or of Python code: this job's file has all layers")
    exchange = exchange_of(job, parameters, speeds, speeds.step_s)
    if exchange is None:
        raise UserError(f"{job.strategy.name} as this job has it exchanges nothing through shards after mini-batches")
    return SizedPlan(job.name, parameters, job.samples_at_once, speeds, exchange)
