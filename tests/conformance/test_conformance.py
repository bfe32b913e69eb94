"""Runs of the simulation are runs of the protocol's model; errors planted in a trace of one are found."""

from __future__ import annotations

import re

import pytest

from tests.model.search import ABSENT
from tests.simulation.command import run_command

from .runs import COVERED

RUNS = 6
MORE_RUNS = 200

needs_spin = pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}")


def judge(*words: str) -> tuple[list[int], str]:
    """Runs, runs accepted, traces, traces accepted, and events, and what the command printed."""
    ended = run_command("tests.conformance", *words)
    figures = re.search(r"^all +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)", ended.stdout, re.MULTILINE)
    assert figures is not None, ended.stdout + ended.stderr
    return [int(figure) for figure in figures.groups()], ended.stdout


@needs_spin
@pytest.mark.processes
@pytest.mark.parametrize(
    ("first", "count"), [(0, RUNS), pytest.param(21, MORE_RUNS, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_simulated_runs_are_runs_of_the_model(first: int, count: int) -> None:
    (runs, accepted, traces, traces_accepted, events), printed = judge(
        f"--first={first}", f"--seeds={count}", "--processes=1"
    )
    assert (runs, accepted, traces) == (count, count, traces_accepted), printed
    assert events > 500 * count


def test_all_jobs_with_followers_are_covered() -> None:
    assert {"downpour", "bounded", "adagrad", "async-sgd", "easgd", "sync-sgd", "synchronous"} <= set(COVERED)
    assert not {"hogwild-sgd", "hogwild-easgd", "sandblaster"} & set(COVERED)
