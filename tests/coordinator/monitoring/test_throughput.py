"""Throughput of the job and of its members."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.members import Member
from coordinator.core.messages import ProgressReport
from coordinator.core.progress import TrainingProgress
from coordinator.monitoring.throughput import WINDOW_S, MemberThroughput, RateWindow, Speed
from dbelief.process.clock import ManualClock
from dbelief.rpc.pb import coordination_pb2 as wire

NOWHERE = Path("nowhere/events.jsonl")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_rate_covers_the_last_half_minute_of_reports(clock: ManualClock) -> None:
    rate = RateWindow(clock, WINDOW_S)
    for second in range(200):
        rate.note(7 * min(second, 100))
        clock.advance(1.0)
    assert rate.per_second() == 0.0
    rate = RateWindow(clock, WINDOW_S)
    rate.note(1.0)
    clock.advance(1.0)
    rate.note(4.0)
    assert rate.per_second() == 3.0
    clock.advance(WINDOW_S + 1)
    assert rate.per_second() == 0.0


def test_a_total_that_has_fallen_is_another_incarnations(clock: ManualClock) -> None:
    rate = RateWindow(clock, WINDOW_S)
    for total in (1000.0, 2000.0, 10.0, 30.0):
        rate.note(total)
        clock.advance(1.0)
    assert rate.per_second() == 20.0


def test_a_rate_keeps_few_points_however_often_a_total_is_noted(clock: ManualClock) -> None:
    rate = RateWindow(clock, WINDOW_S)
    for tick in range(5000):
        rate.note(tick)
        clock.advance(0.01)
    assert rate.per_second() == pytest.approx(100.0)
    assert len(rate._points) < 100


def test_every_member_has_rates_of_its_own(clock: ManualClock) -> None:
    throughput = MemberThroughput(clock, NOWHERE, iterates=False)
    for second in range(10):
        for number, pushes in enumerate((7, 3)):
            throughput.record_shard(number, wire.ShardFigures(pushes=pushes * second, bytes_sent=100 * second))
        clock.advance(1.0)
    shards = [Member("shard", number, 1 + number, "name", 1) for number in range(3)]
    assert [throughput.per_second(shard, "pushes") for shard in shards] == [7.0, 3.0, 0.0]
    assert throughput.per_second(shards[1], "bytes") == 100.0
    assert throughput.per_second(Member("replica", 0, 4, "name", 1), "samples") == 0.0


def test_speed_is_that_of_the_last_seconds() -> None:
    clock = ManualClock()
    speed = Speed(clock, window_s=5.0)
    assert speed.per_second() == 0.0
    samples = 0
    for rate in [100] * 20 + [10] * 20:
        speed.note(samples)
        clock.advance(1.0)
        samples += rate
    speed.note(samples)
    assert speed.per_second() == pytest.approx(10.0)


def test_speed_without_time_is_nothing() -> None:
    speed = Speed(ManualClock())
    speed.note(0)
    speed.note(100)
    assert speed.per_second() == 0.0


def test_the_mean_is_from_the_first_sample_to_the_last() -> None:
    clock = ManualClock()
    speed = Speed(clock, window_s=5.0)
    for samples in [0] * 10 + [100, 200, 300] + [300] * 20:
        assert speed.mean() == pytest.approx(100.0 if samples else 0.0) or samples == 100
        speed.note(samples)
        clock.advance(1.0)
    assert speed.per_second() == 0.0
    assert speed.mean() == pytest.approx(100.0)


def test_samples_before_resume_do_not_count_as_speed(clock: ManualClock) -> None:
    progress, seen = TrainingProgress(), MemberThroughput(clock, NOWHERE, iterates=False)
    member = Member("replica", 0, 1, "name", 1)
    seen.record_pushers([member], progress)
    clock.advance(1.0)
    then = TrainingProgress()
    then.record_report(0, ProgressReport(pushes=1, samples=9_000), 0.0)
    progress.restore(then.state(), {0: -500})
    assert (progress.samples, progress.samples_since, progress.samples_of_since(0)) == (8_500, 0, 0)
    seen.record_pushers([member], progress)
    assert seen.per_second(member, "samples") == 0.0
    progress.record_report(0, ProgressReport(pushes=1, samples=30), 0.0)
    clock.advance(1.0)
    seen.record_pushers([member], progress)
    assert progress.samples_since == 30
    assert seen.per_second(member, "samples") == 15.0
