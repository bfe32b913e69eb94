"""Exchanges of a job of which only the number of parameters is known: a script's, or that of a Python model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dbelief.errors import UserError
from dbelief.job import Job, PythonModel, ScriptModel

from .exchange import Exchange, exchange_of
from .rows import PlannedRows, plan_rows
from .speeds import Speeds


@dataclass(frozen=True)
class SizedPlan:
    """The exchanges of a job, by its number of parameters.

    Attributes
    ----------
    samples
        Of a mini-batch.
    rows
        Tables of the job; None: it has none.
    """

    job: str
    parameters: int
    samples: int
    speeds: Speeds
    exchange: Exchange
    rows: PlannedRows | None = None

    def described(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "job": self.job,
            "parameters": self.parameters,
            "samples": self.samples,
            **asdict(self.speeds),
            "exchange": self.exchange.described(),
            "rows": None if self.rows is None else self.rows.described(),
        }


def plan_sized(
    job: Job,
    parameters: int,
    speeds: Speeds,
    rows: Mapping[str, int] | None = None,
    keys: Mapping[str, int] | None = None,
    memory_gib: float | None = None,
) -> SizedPlan:
    """Plan the exchanges of a job with so many trained parameters, and its tables.

    Parameters
    ----------
    rows, keys, memory_gib
        See `plan_rows`; None: none are known.

    Raises
    ------
    UserError
        The job's model has its own number of parameters, or the job has no exchanges through shards; see `plan_rows`.
    """
    if not isinstance(job.model, ScriptModel | PythonModel):
        raise UserError("--parameters is for the model of a script or of Python code: this job's file has all layers")
    planned = plan_rows(job, parameters, rows or {}, keys or {}, memory_gib)
    exchange = exchange_of(job, parameters, speeds, speeds.step_s, planned.traffic)
    if exchange is None:
        raise UserError(f"{job.strategy.name} as this job has it exchanges nothing through shards after mini-batches")
    held = planned if planned.tables else None
    return SizedPlan(job.name, parameters, job.samples_at_once, speeds, exchange, held)
