"""Seeds of the simulation: no invariant is violated, a seed replays bit for bit, and planted errors are found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .command import PROJECT, run_command
from .models.jobs import JOBS
from .plan.plan import KINDS, draw_plan
from .planted.errors import PLANTED
from .planted.search import plant, search_for

SEEDS = 102
APART = 1
"""Seeds of each way that is not gRPC, which come after them; their jobs have tables."""
WAYS = "--shared-memory", "--direct-streams"
PARTS = 34
"""Parts of the seeds; `make test` runs the first one, and `make test-long` the others."""


def simulate(*words: str) -> str:
    """Run the command in a process of its own; its output."""
    ended = run_command("tests.simulation", *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.processes
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_no_invariant_is_violated(part: int) -> None:
    count = SEEDS // PARTS
    printed = simulate(f"--first={part * count}", f"--seeds={count}", "--processes=1")
    faults, pushes = map(int, re.findall(r"^all +\d+ +(\d+) +\d+ +(\d+)", printed, re.MULTILINE)[0])
    assert faults >= 3 * count
    assert pushes >= 10 * count


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_no_invariant_is_violated_where_messages_go_another_way(way: str) -> None:
    first = SEEDS + APART * WAYS.index(way)
    printed = simulate(f"--first={first}", f"--seeds={APART}", "--processes=1", way)
    assert re.search(rf"^all +{APART} .* 0$", printed, re.MULTILINE)


@pytest.mark.processes
@pytest.mark.parametrize("more", [(), *(pytest.param((way,), marks=pytest.mark.long) for way in WAYS)])
def test_a_seed_replays_bit_for_bit(more: tuple[str, ...]) -> None:
    first, again = (re.search(r"trace -?[0-9a-f]+", simulate("--replay=5", *more)) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first[0] == again[0]


def test_seeds_cover_all_strategies_and_kinds_of_faults() -> None:
    plans = [draw_plan(seed) for seed in range(SEEDS)]
    assert {plan.job for plan in plans} == set(JOBS)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)
    assert min(len(plan.faults) for plan in plans) >= 3
    assert plans == [draw_plan(seed) for seed in range(SEEDS)]
    assert all(JOBS[draw_plan(SEEDS + APART * way).job].tables for way in range(len(WAYS)))


def test_every_planted_error_can_be_planted(tmp_path: Path) -> None:
    assert len({one.name for one in PLANTED}) == len(PLANTED)
    for one in PLANTED:
        copy = tmp_path / one.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((PROJECT / one.file).read_text())
        plant(one, tmp_path)
        compile(copy.read_text(), one.file, "exec")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "lost_follower_not_waited_for",
        "promoted_versions_not_above_the_heads",
        "answer_merged_again",
        "rows_of_a_repeated_push_applied_again",
        "rows_not_preserved_for_a_set",
        "bucket_handed_over_without_the_state_of_its_rows",
        "rows_counted_out_of_one_full_write",
        "gaps_filled_with_the_last_rows",
        "first_pushed_row_dropped_alone",
    ],
)
def test_a_planted_error_is_found(name: str) -> None:
    assert search_for(next(one for one in PLANTED if one.name == name), SEEDS, 2)
