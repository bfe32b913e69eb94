"""Samples lost and doubled, and the time until the speed is back, from reports."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers import course, reports
from benchmarks.peers.reports import Counted, Follower, Line
from tests.examples import examples


def trained(at_s: float, source: str, first: int, last: int) -> Line:
    return Line(at_s, "trained", (source, first, last))


def applied(at_s: float, source: str, first: int, last: int) -> Line:
    return Line(at_s, "applied", (source, first, last))


def state(at_s: float, samples: int) -> Line:
    return Line(at_s, "state", ("", 1, samples))


TWO = [trained(1, "a", 1, 64), applied(2, "a", 1, 64), trained(3, "b", 1, 64), applied(4, "b", 1, 64)]


def test_all_that_is_applied_once_is_neither_lost_nor_doubled() -> None:
    assert reports.count([state(0, 0), *TWO], {"a", "b"}) == Counted(128, 0, 0)


def test_what_a_process_had_on_its_way_is_lost_with_it() -> None:
    lines = [*TWO, trained(5, "a", 65, 128), trained(6, "b", 65, 128)]
    assert reports.count(lines, {"a"}) == Counted(256, 64, 0)


def test_a_step_left_out_is_lost_though_its_process_runs() -> None:
    lines = [*TWO, trained(5, "a", 65, 128), trained(6, "a", 129, 192), applied(7, "a", 129, 192)]
    assert reports.count(lines, {"a", "b"}) == Counted(256, 64, 0)


def test_a_step_applied_again_is_doubled() -> None:
    assert reports.count([*TWO, applied(5, "b", 1, 64)], {"a", "b"}) == Counted(128, 0, 64)


def test_a_model_that_begins_anew_loses_all() -> None:
    lines = [*TWO, state(5, 0), trained(6, "c", 1, 64), applied(7, "c", 1, 64)]
    assert reports.count(lines, {"c"}) == Counted(192, 128, 0)


def test_a_checkpoint_keeps_the_first_samples() -> None:
    lines = [*TWO, state(5, 96), trained(6, "c", 1, 64), applied(7, "c", 1, 64)]
    assert reports.count(lines, {"c"}) == Counted(192, 32, 0)
    assert reports.ledger(lines) == [("a", 1, 64), ("b", 1, 32), ("c", 1, 64)]


def test_a_checkpoint_of_more_than_was_reported_loses_nothing() -> None:
    assert reports.count([*TWO, state(5, 256)], set()) == Counted(128, 0, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=30))
@examples(50)
def test_each_sample_counts_as_often_as_it_is_missing_or_had_again(steps: list[tuple[bool, int]]) -> None:
    lines, lost, doubled = [], 0, 0
    for number, (of_a, times) in enumerate(steps):
        source, first = "ab"[of_a], 10 * number + 1
        own = sum(one[0] == of_a for one in steps[:number])
        first = 10 * own + 1
        lines.append(trained(number, source, first, first + 9))
        lines += [applied(number, source, first, first + 9)] * times
        lost += 10 * (times == 0)
        doubled += 10 * max(0, times - 1)
    assert reports.count(lines, set()) == Counted(10 * len(steps), lost, doubled)


def test_lines_are_read_as_they_are_completed(tmp_path: Path) -> None:
    file = tmp_path / "worker-0.7.jsonl"
    follower = Follower(tmp_path)
    file.write_text('{"at": 2.0, "trained": ["worker-0.7", 1, 64]}\n{"at": 1.0, "sta')
    follower.look()
    assert follower.lines == [trained(2.0, "worker-0.7", 1, 64)]
    with open(file, "a") as more:
        more.write('te": 5}\nnone\n')
    follower.look()
    assert follower.ordered() == [state(1.0, 5), trained(2.0, "worker-0.7", 1, 64)]


def every_tenth(begin_s: float, end_s: float, samples: float) -> list[tuple[float, float]]:
    return [(begin_s + 0.1 * number, samples) for number in range(round((end_s - begin_s) * 10))]


def test_the_speed_is_back_where_a_window_of_it_begins() -> None:
    looks = every_tenth(0.05, 5, 10) + every_tenth(8.05, 15, 10)
    assert reports.back_s(looks, 5.0, 14.0, 90.0, 2.0) == pytest.approx(2.8, abs=0.11)  # 90 % of the first window


def test_a_kill_that_is_not_felt_takes_no_time() -> None:
    assert reports.back_s(every_tenth(0.05, 12, 10), 5.0, 12.0, 90.0, 2.0) == 0.0


@pytest.mark.parametrize("looks", [[], every_tenth(0, 5, 10), every_tenth(0, 12, 8)])
def test_a_speed_that_does_not_come_back_has_no_time(looks: list[tuple[float, float]]) -> None:
    assert reports.back_s(looks, 5.0, 12.0, 90.0, 2.0) is None


def test_a_last_burst_is_no_speed_that_is_back() -> None:
    assert reports.back_s(every_tenth(0.05, 7.5, 10), 5.0, 14.0, 90.0, 2.0) is None


def test_the_time_of_a_step_is_that_between_reports_of_one_source() -> None:
    lines = [trained(0.0, "a", 1, 64), trained(0.1, "b", 1, 64), trained(1.0, "a", 65, 128), trained(3.1, "b", 65, 128)]
    assert reports.step_s(lines) == pytest.approx(2.0)
    assert reports.step_s(lines[:2]) is None


def test_training_goes_on_before_a_start_or_after_it_or_not() -> None:
    before, after = [trained(7, "a", 1, 64)], [trained(9, "b", 1, 64)]
    assert course.goes_on(before, 5.0, [8.0], 10.0, 1.5) == "yes"
    assert course.goes_on(after, 5.0, [8.0], 10.0, 1.5) == "started again"
    assert course.goes_on(after, 5.0, [], 10.0, 1.5) == "yes"
    assert course.goes_on(after, 5.0, [6.0], 10.0, 5.0) == "no"
    assert course.goes_on([trained(5.5, "a", 1, 64)], 5.0, [8.0], 10.0, 1.5) == "no"
