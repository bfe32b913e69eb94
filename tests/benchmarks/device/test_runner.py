"""The check of a device: each part ends, whatever becomes of it, and what it found is kept."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import check, findings, machine, runner, table
from benchmarks.device.bounds import ALL_S, DESCRIPTION_S, PARTS, Part, chosen
from benchmarks.device.parts import marked_tests

PART = Part("memory", 60.0, "a program of the test")
FOUND = {"what": "one", "value": 1.0, "unit": "s", "beside": {"host": 2.0}}
WAITING = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
with open(sys.argv[1], "a") as file:
    file.write('{"what": "one", "value": 1.0, "unit": "s", "beside": {"host": 2.0}}\\n{"what": "tw')
time.sleep(600)
"""


def program(text: str) -> Callable[[Path], Sequence[str]]:
    """The command of a part that is this program; its argument is the file of its findings."""
    return lambda file: [sys.executable, "-c", text, str(file)]


def state_of(pid: int) -> str:
    """State of a process as Linux has it: "S" where it sleeps, "Z" where it is dead; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def writing(*rows: dict[str, Any], end: str = "") -> Callable[[Path], Sequence[str]]:
    """A part that finds these, and ends so."""
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    return program(f"import os, sys\nopen(sys.argv[1], 'w').write({lines!r})\n{end}")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "figures", "state", "reason"),
    [
        (writing(FOUND), 1, "ok", ""),
        (writing(FOUND, {"left_out": "mnist: not there"}), 1, "ok", "mnist: not there"),
        (writing({"left_out": "script: no torch"}), 0, "skipped", "script: no torch"),
        (writing(FOUND, {"failed": "too far apart"}, end="raise SystemExit(1)"), 1, "failed", "too far apart"),
        (writing(FOUND, end="raise SystemExit(3)"), 1, "failed", "exit code 3"),
        (writing(FOUND, end="os.kill(os.getpid(), 11)"), 1, "failed", f"killed by signal {signal.SIGSEGV:d}"),
        (writing(), 0, "failed", "it found nothing"),
    ],
)
def test_the_state_of_a_part(words: Callable[[Path], Sequence[str]], figures: int, state: str, reason: str) -> None:
    row = runner.run(PART, words, PART.bound_s)
    assert (row["name"], row["state"], row["reason"], row["bound_s"]) == ("memory", state, reason, 60.0)
    assert row["figures"] == [FOUND] * figures
    assert 0 <= row["seconds"] < 60.0


@pytest.mark.processes
def test_the_output_of_a_part_is_kept(tmp_path: Path) -> None:
    row = runner.run(PART, program("print('before the end')\nraise SystemExit(1)"), 60.0, tmp_path / "logs")
    assert row["output"] == ["before the end"]
    assert (tmp_path / "logs" / "memory.log").read_text() == "before the end\n"


@pytest.mark.processes
def test_a_part_past_its_bound_ends_with_all_its_processes(tmp_path: Path) -> None:
    began_s = time.monotonic()
    row = runner.run(PART, program(WAITING), 5.0)
    assert time.monotonic() - began_s < 120
    assert (row["state"], row["reason"]) == ("timeout", "still at work after 5 s")
    (child,) = row["output"]
    assert state_of(int(child)) in ("", "Z"), (
        "whether the first process of a container waits for orphans is its own affair"
    )
    assert row["figures"] == [FOUND], "what was found before is kept, but for a line that was not finished"


@pytest.mark.processes
def test_a_check_goes_on_after_a_part_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {"rules": writing(end="raise SystemExit(1)"), "copies": writing(FOUND)}
    about = {"device": "none", "device_bytes": 1, "driver": "", "cupy": ""}
    monkeypatch.setattr(machine, "ask", lambda command, environment: about)
    monkeypatch.setattr(runner, "command", lambda part, small, file: programs[part.name](file))
    results = check.check(chosen(["copies", "rules"]), stand_in=True, logs=None)
    assert json.loads(json.dumps(results)) == results
    names = {"command", "day", "processor", "cores", "device", "device_bytes", "driver", "cupy", "commit"}
    assert set(results["measured"]) == names
    assert [(row["name"], row["state"]) for row in results["parts"]] == [("rules", "failed"), ("copies", "ok")]
    fields = {"name", "state", "reason", "seconds", "processor_s", "bound_s", "figures"}
    assert [set(row) - {"output"} for row in results["parts"]] == [fields, fields]
    shown = table.make(results["measured"], results["parts"], stand_in=True)
    assert shown.row_count == 3
    assert "STAND-IN" in str(shown.title)


def test_all_parts_take_eight_minutes_at_most() -> None:
    assert sum(part.bound_s for part in PARTS.values()) + DESCRIPTION_S <= ALL_S
    assert all(part.name == name for name, part in PARTS.items())


def test_parts_run_in_the_order_of_the_table() -> None:
    assert [part.name for part in chosen(["rules", "tests"])] == ["tests", "rules"]
    assert chosen([]) == list(PARTS.values())
    with pytest.raises(ValueError, match="gpus: not one of tests, kernels"):
        chosen(["gpus"])


def test_findings_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = findings.Findings(tmp_path / "findings.jsonl")
    found.figure("one", 1, "s", {"host": 2, "unknown": None})
    found.left_out("script", "no torch")
    found.failed("too far apart")
    assert findings.read(tmp_path / "findings.jsonl") == ([FOUND], ["script: no torch"], ["too far apart"])


def test_numbers_that_are_missing_are_not_close() -> None:
    findings.check_close("accuracy", 0.5, 0.51, 0.02)
    for found, wanted in ((0.5, 0.6), (None, 0.6), (0.5, float("nan"))):
        with pytest.raises(AssertionError, match="accuracy"):
            findings.check_close("accuracy", found, wanted, 0.02)


def test_tests_are_counted_from_pytests_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="2" errors="1" skipped="2"/></testsuites>')
    assert marked_tests.count(report) == {"passed": 4, "failed": 3, "skipped": 2}
    assert "tests/processes/test_on_cuda.py" in marked_tests.marked()
