"""The tables of `dbelief plan`, and the command."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from dbelief.cli import main
from dbelief.job import load_job
from dbelief.plan import make_plan
from dbelief.report.planned import planned, size

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def told(name: str, memory_gib: float | None = None, overrides: Mapping[str, str] = {}) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(planned(make_plan(load_job(EXAMPLES / f"{name}.yaml", overrides), memory_gib)))
    return captured.get()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1_500_000, "1.431 MiB"),
        (5 << 40, "5 TiB"),
        (1 << 70, "1.049e+06 PiB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert size(count) == text


def test_what_a_person_asks_first_stands_first() -> None:
    lines = told("cots_11b", 16).splitlines()
    assert lines[1].split() == ["parameters", "11,199,485,955", "trained"]
    assert any(line.startswith("fits") and "the largest rank: 5.828 GiB of 16 GiB" in line for line in lines)
    assert any(line.startswith("fits") and "each rank at its start: 2.281 GiB of 16 GiB" in line for line in lines)
    assert any(line.startswith("DOES NOT FIT  replicas and shards on this machine: 371.2 GiB of ") for line in lines)
    assert any("11,199,485,952 weights of filters" in line for line in lines)
    (second,) = (line for line in lines if line.startswith("stack 2 "))
    assert "weight 36 x 36 x 288 x 8 x 8 x 288" in second
    assert "6,879,707,137" in second


def test_of_many_ranks_the_largest_and_the_smallest_are_shown() -> None:
    text = told("cots_11b")
    assert "rank 27, largest" in text
    assert "rank 0, smallest" in text
    few = told("digits_conv", overrides={"grid": "[2, 2]"})
    assert [f"rank {rank}" in few for rank in range(5)] == [True] * 4 + [False]


def test_one_rank_sends_nothing() -> None:
    text = told("digits")
    assert "between ranks" not in text
    assert "sent to other ranks" not in text
    assert "inputs of dense2" in told("digits", overrides={"grid": "[2]"})


def test_frozen_stacks_are_named() -> None:
    text = told("cots_11b", overrides={"model.train": "2"})
    assert "stack 1 (frozen)" in text
    assert "731,289,601 used as they are, 3,588,489,217 of no part in this job yet" in text


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    arguments = ["plan", str(EXAMPLES / "cots_1b.yaml"), "--set", "shards=3", "--memory", "100"]
    as_json = run(main, [*arguments, "--json"])
    assert as_json.exit_code == 0
    found = json.loads(as_json.output)
    assert found["parameters"]["trained"] == 1_367_449_603
    assert len(found["shards"]) == 3
    assert [fit["fits"] for fit in found["fits"]][:2] == [True, True]
    table = run(main, arguments)
    assert table.exit_code == 0
    assert "1,367,449,603 trained" in table.output
    wrong = run(main, [*arguments[:2], "--set", "model.image=[40, 40, 3]"])
    assert wrong.exit_code == 2
    assert run(main, [*arguments[:2], "--memory", "0"]).exit_code == 2
