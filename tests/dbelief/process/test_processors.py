"""Processors of this process: which, and what it has used."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dbelief.process import processor_times, processors
from dbelief.process.processor_times import ProcessorTimes
from dbelief.process.processors import ProcessorMeter, available_processors, machine_name, network_name
from dbelief.process.runtime import Runtime, use_runtime


class Worked(Runtime):
    """A second of work in ten, beside three of others."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.monotonic = lambda: self.now_s
        self.processor_times = lambda: ProcessorTimes(5.0 + 0.1 * self.now_s, 50.0 + 0.4 * self.now_s)


def test_a_meter_counts_from_its_start() -> None:
    worked = Worked()
    with use_runtime(worked):
        meter = ProcessorMeter()
        worked.now_s = 10.0
        read = meter.read()
    assert (read.used_s, read.busy_s, read.lived_s) == pytest.approx((1.0, 4.0, 10.0))
    assert read.machine == machine_name()


def test_this_process_uses_processor_time() -> None:
    before = processor_times.processor_times()
    while time.process_time() < before.used_s + 0.02:
        sum(range(1000))
    after = processor_times.processor_times()
    assert after.used_s - before.used_s >= 0.02
    assert after.busy_s >= before.busy_s


def test_the_first_line_of_stat_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User, nice, system, idle, wait, interrupts twice, stolen; guests are within the first two."""
    monkeypatch.setattr(processor_times, "STAT", tmp_path / "stat")
    (tmp_path / "stat").write_text("cpu  100 20 30 7000 900 1 2 47 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    assert processor_times.processor_times().busy_s == 2.0


def test_without_stat_the_machine_is_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_times, "STAT", tmp_path / "absent")
    found = processor_times.processor_times()
    assert found.busy_s == found.used_s


@pytest.mark.parametrize(("text", "share"), [("50000 100000", 0.5), ("max 100000", None), ("", None)])
def test_a_control_group_limits_processors(
    text: str, share: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "LIMIT", tmp_path / "absent")
    free = available_processors()
    monkeypatch.setattr(processors, "LIMIT", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(text)
    assert available_processors() == (free if share is None else share)


def test_machines_and_networks_have_names_that_do_not_tell_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("one\n")
    first = machine_name(), network_name()
    (tmp_path / "boot").write_text("two\n")
    second = machine_name(), network_name()
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert all(len(name) == 8 for name in (*first, *second))
    monkeypatch.setattr(processors, "BOOT", tmp_path / "absent")
    monkeypatch.setattr(processors, "NETWORK", tmp_path / "absent")
    assert network_name() == machine_name()
