"""The actor's promises, kept by calling it in this thread: it never waits for what is gone, and always ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator import runner as module
from coordinator.actions import MakeReady, Note
from coordinator.runner import Runner, Speed
from coordinator.states import State
from dbelief.clock import ManualClock
from dbelief.console import DEBUG
from dbelief.errors import Refused, Unreachable
from dbelief.metrics import Metrics
from dbelief.registry import MemoryRegistry
from dbelief.report.events import read_events
from dbelief.report.summary import read_summary

if TYPE_CHECKING:
    from tests.coordinator.world import World


@pytest.fixture
def world(a_world: Callable[..., World]) -> World:
    return a_world()


@pytest.fixture
def runner(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.setattr(module, "draw_curves", lambda *_: None)
    clock = ManualClock()
    metrics = Metrics("coordinator")
    made = Runner(world.machine, tmp_path, MemoryRegistry(clock), 1, metrics, clock)
    yield made
    made._events.close()
    metrics.close()


def carry_out(runner: Runner) -> None:
    """The actor's work, up to here."""
    runner._queue.put(None)
    runner._act()


def test_what_the_machine_wants_is_queued_even_if_the_step_fails(runner: Runner) -> None:
    def refused() -> None:
        with runner.step() as (machine, _):
            machine.actions.append(Note("state", {"state": "x", "reason": ""}))
            raise Refused("no")

    with pytest.raises(Refused):
        refused()
    assert runner._queue.qsize() == 1
    with runner.step() as (machine, _):
        assert machine.actions == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unreachable("shard 1 at 10.0.0.1:5: no answer"), "MakeReady: shard 1 at 10.0.0.1:5: no answer"),
        (OSError(28, "No space left on device"), "MakeReady: [Errno 28] No space left on device"),
        (ZeroDivisionError("by zero"), f"MakeReady: ZeroDivisionError: by zero ({__file__}, line LINE)"),
    ],
)
def test_whatever_goes_wrong_ends_the_job_and_is_told(
    runner: Runner,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
) -> None:
    def fails() -> None:
        raise error

    reason = reason.replace("LINE", str(fails.__code__.co_firstlineno + 1))
    monkeypatch.setenv(DEBUG, "")
    monkeypatch.setattr(runner._shards, "make_ready", fails)
    runner._queue.put(MakeReady())
    carry_out(runner)
    assert world.state() is State.FAILED
    assert world.machine.reason == reason
    carry_out(runner)
    assert read_summary(tmp_path / "summary.json").reason == reason
    assert "Traceback" not in capsys.readouterr().err


def test_a_job_ends_though_its_curves_cannot_be_drawn(
    runner: Runner, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "draw_curves", fails)
    with runner.step() as (machine, _):
        machine.fail("out of memory")
    carry_out(runner)
    assert runner._finished.is_set()
    assert world.machine.reason == "out of memory"
    assert "Finish: [Errno 28] No space left on device" in capsys.readouterr().err


def test_events_of_progress_are_thinned_out_and_no_others(runner: Runner, tmp_path: Path) -> None:
    for samples in range(50):
        runner._queue.put(Note("progress", {"samples": samples}))
        runner._queue.put(Note("snapshot", {"set": str(samples)}))
    carry_out(runner)
    events = [event["event"] for event in read_events(tmp_path / "events.jsonl")]
    assert (events.count("progress"), events.count("snapshot")) == (1, 50)


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
