"""The speed of this machine's processors, from short measurements."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from benchmarks.simulate.real_runs import processor_speed


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_speed, "MEASURED_S", 0.02)


def test_a_speed_is_a_multiple_of_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = processor_speed.processor_speed(1)
    assert math.isfinite(found)
    assert found > 0
    drawn = iter((0.5, 0.75, 0.25))
    monkeypatch.setattr(processor_speed, "_measured", lambda: next(drawn))
    assert processor_speed.processor_speed() == 0.75, "others only disturb it"


@pytest.mark.processes
@pytest.mark.long
def test_processors_together_are_at_most_as_fast_as_one_alone() -> None:
    """In a process of its own, which ends with what multiprocessing keeps in the background."""
    program = "from benchmarks.simulate.real_runs.processor_speed import together; print(together())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert 0 < float(found.stdout) <= 1
