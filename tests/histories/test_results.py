"""The long run's results: the next run goes on where one was ended; its plans cover all combinations."""

from __future__ import annotations

from pathlib import Path

from .plan import Kind, Plan
from .results import Result, append, read, table


def result(number: int, anomalies: list[str]) -> Result:
    return Result(number, "kind", "TCP", False, 100, 1600, {"leader killed": 2}, 10.0, 0.8, anomalies)


def test_results_are_read_again_but_for_an_incomplete_line(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert read(file) == []
    written = [result(0, []), result(1, ["segment 3"])]
    for one in written:
        append(file, one)
    with file.open("a") as lines:
        lines.write('{"number": 2, "ki')
    assert read(file) == written
    append(file, result(2, []))
    assert [one.number for one in read(file)] == [0, 1, 2]


def test_the_table_says_what_is_counted() -> None:
    text = table([result(0, []), result(1, ["segment 3"])])
    assert "| all | 2 | 200 | 3,200 | 1 |" in text
    assert "| with rows of tables | 1 | 100 | 1,600 | 0 |" in text
    assert "An operation is a call on one segment" in text
    assert "leader killed 4" in text
    assert "5.00 s (median), 5.00 s (worst)" in text


def test_plans_cover_all_combinations() -> None:
    plans = [Plan.of(number) for number in range(42)]
    assert len({(plan.kind, plan.transport, plan.number % 2) for plan in plans}) == 42
    assert not any(plan.exchanges for plan in plans if plan.kind is Kind.STALENESS)
