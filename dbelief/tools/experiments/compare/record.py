"""Result of a run of a comparison, stored in a file: a run with a record is not repeated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dbelief.job import Comparison, Trial
from dbelief.process.atomic_file import write_whole

from .time_to_target import EvaluatedPoint, RunPoint


class Record(BaseModel):
    """One run."""

    model_config = ConfigDict(frozen=True)

    label: str
    replicas: int
    wait_s: float
    seed: int
    digest: str = Field(description="of all that the run depends on, in the comparison's file")
    failed: str = Field(default="", description="why there is no result; empty: there is one")
    accuracy: float | None = Field(default=None, description="on the test set, at the end")
    metrics: dict[str, float] = Field(
        default_factory=dict, description="`evaluate.metrics` on the test set, at the end"
    )
    samples: int = Field(default=0, description="trained")
    seconds: float = Field(default=0.0, description="from the beginning of training to its end")
    staleness: float | None = Field(default=None, description="mean over all pushes, in versions")
    phase_seconds: dict[str, dict[str, float]] = Field(default_factory=dict, description="see Summary")
    copies: int = Field(default=0, description="of the parameters, between which targets were looked for")
    curve: list[EvaluatedPoint] = Field(default_factory=list)
    reached: dict[str, RunPoint | None] = Field(default_factory=dict, description="by target, as text")


def key_of(target: float) -> str:
    """Key of a target in `Record.reached`."""
    return f"{target:g}"


def digest_of(trial: Trial, comparison: Comparison) -> str:
    """SHA-256 of everything that a run and its evaluation depend on, in hexadecimal."""
    more = comparison.every.model_dump(), comparison.targets, trial.wait_s
    return hashlib.sha256(json.dumps([trial.job.digest(), more]).encode()).hexdigest()


def write_record(folder: Path, name: str, record: Record) -> None:
    """Write a record."""
    write_whole(folder / f"{name}.json", (record.model_dump_json(indent=1) + "\n").encode())


def read_record(folder: Path, trial: Trial, comparison: Comparison) -> Record | None:
    """The record of a run; None where there is none, or its digest differs."""
    try:
        record = Record.model_validate_json((folder / f"{trial.name}.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return record if record.digest == digest_of(trial, comparison) else None
