"""How many workers a job has on so many tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.errors import UserError
from dbelief.job import Job, load_job
from dbelief.launch.slurm.launch import workers_for

ROOT = Path(__file__).parents[4]


def _job(**overrides: str) -> Job:
    return load_job(ROOT / "examples" / "digits.yaml", overrides)


def test_remaining_tasks_are_workers() -> None:
    assert workers_for(_job(shards="2"), 7) == 4
    assert workers_for(_job(shards="2", replication="2"), 7) == 2


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 tasks are too few: 1 coordinator, 2 shards, and workers.*--set replicas=1"):
        workers_for(_job(shards="2"), 3)
