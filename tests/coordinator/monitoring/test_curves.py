"""Learning curves and recent events of a run."""

from __future__ import annotations

import json
import math
import re
import threading
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from coordinator.monitoring.curves import MAX_EVENTS as MOST_EVENTS
from coordinator.monitoring.curves import MAX_POINTS, DecimatedCurve, LearningCurves, RecentEvent, RecentEvents
from dbelief.monitor import event_text

NOWHERE = Path("nowhere/events.jsonl")
TIME = "2023-11-14T22:13:20.500Z"


@given(st.integers(1, 5000), st.integers(1, 9))
def test_a_curve_is_thinned_evenly_and_keeps_its_ends(count: int, step: int) -> None:
    curve = DecimatedCurve("samples")
    for index in range(count):
        curve.add(step * index, math.sqrt(index))
    points = curve.points()
    assert points[0] == (0, 0.0)
    assert points[-1] == (step * (count - 1), math.sqrt(count - 1))
    assert set(points) <= {(step * index, math.sqrt(index)) for index in range(count)}
    assert min(count, MAX_POINTS // 2) <= len(points) <= MAX_POINTS + 1
    gaps = [b[0] - a[0] for a, b in pairwise(points[:-1])]
    assert len(set(gaps)) <= 1


def test_curve_drops_rolled_back_points_and_nan() -> None:
    curve = DecimatedCurve("samples")
    for x in range(10):
        curve.add(x, 1.0)
    curve.add(4, 2.0)
    curve.add(5, math.nan)
    curve.add(None, 1.0)
    assert curve.points() == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (4, 2.0)]


def test_a_run_has_the_curves_of_its_events() -> None:
    course = LearningCurves(NOWHERE, iterates=False)
    course.add("state", {"state": "ready"}, 0.0)
    for samples in (10, 20):
        course.add("progress", {"samples": samples, "loss": 1 / samples}, 0.0)
    course.add("evaluation", {"set": "validation", "samples": 20, "loss": 0.5, "accuracy": None}, 0.0)
    course.add("evaluation", {"set": "test", "samples": 20, "loss": 0.25, "accuracy": 0.75}, 0.0)
    assert course.curves() == [
        ("loss", "samples", [(10, 0.1), (20, 0.05)]),
        ("validation_loss", "samples", [(20, 0.5)]),
    ]


def test_a_batch_methods_loss_goes_over_its_iterations() -> None:
    course = LearningCurves(NOWHERE, iterates=True)
    course.add("progress", {"samples": 10, "loss": math.nan}, 0.0)
    course.add("iteration", {"iteration": 1, "loss": 0.5}, 0.0)
    assert course.curves() == [("loss", "iterations", [(1, 0.5)])]


def test_resumed_run_has_its_earlier_curves(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    rows = [{"event": "progress", "time": TIME, "samples": x, "loss": float(x)} for x in (1, 2, 3, 4)]
    rows += [
        {"event": "member", "time": TIME, "role": "replica", "id": 1, "what": "died", "reason": "silent for 5.0 s"}
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "pro')
    course = LearningCurves(log, iterates=False)
    course.add("progress", {"samples": 3, "loss": 30.0}, 0.0)
    for thread in threading.enumerate():
        if thread.name == "curves":
            thread.join()
    assert course.curves() == [("loss", "samples", [(1, 1.0), (2, 2.0), (3, 30.0)])]
    course.add("snapshot", {"set": "0003"}, 5.0)
    assert course.recent() == [
        RecentEvent(1_700_000_000.5, "replica 1 failed: silent for 5.0 s", True),
        RecentEvent(5.0, "snapshot 0003 is complete", False),
    ]


def test_metrics_have_curves_which_a_resume_keeps(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    event = {"event": "evaluation", "time": TIME, "set": "validation", "samples": 10, "loss": 1.0, "accuracy": None}
    log.write_text(json.dumps(event | {"metrics": {"auc": 0.5, "old": 1.0}}) + "\n")
    curves = LearningCurves(log, iterates=False)
    for thread in threading.enumerate():
        if thread.name == "curves":
            thread.join(60)
    curves.add("evaluation", event | {"samples": 20, "metrics": {"auc": 0.75, "new": 2.0}}, 1.7e9)
    found = {name: points for name, _, points in curves.curves()}
    assert found["validation_auc"] == [(10, 0.5), (20, 0.75)]
    assert found["validation_old"] == [(10, 1.0)]
    assert found["validation_new"] == [(20, 2.0)]


def test_recent_events_are_text_lines_of_limited_number() -> None:
    events = RecentEvents()
    joined = {"role": "replica", "id": 2, "what": "joined", "reason": "", "name": "host:7"}
    events.add("member", joined, 1.0)
    events.add("progress", {"samples": 5}, 1.5)
    events.add("member", {**joined, "what": "died", "reason": "silent for 9.0 s"}, 2.0)
    events.add("member", {**joined, "name": "host:8"}, 3.0)
    events.add("state", {"state": "ready", "reason": ""}, 4.0)
    events.add("state", {"state": "failed", "reason": "no shard"}, 5.0)
    assert [(one.time_s, one.text, one.trouble) for one in events.since(RecentEvents())] == [
        (1.0, "replica 2 (host:7) joined", False),
        (2.0, "replica 2 (host:7) failed: silent for 9.0 s", True),
        (3.0, "replica 2 (host:8) joined, replaces the former replica 2", False),
        (4.0, "job is training", False),
        (5.0, "job failed: no shard", True),
    ]
    for number in range(2 * MOST_EVENTS):
        events.add("snapshot", {"set": str(number)}, float(number))
    kept = events.since(RecentEvents())
    assert [one.text for one in kept] == [
        f"snapshot {number} is complete" for number in range(MOST_EVENTS, 2 * MOST_EVENTS)
    ]


def test_every_event_of_a_job_has_a_text_or_a_curve() -> None:
    """An event that the coordinator comes to write is not left out of the page by oversight."""
    drawn = {"progress", "evaluation", "iteration", "pass"}
    source = "".join(path.read_text() for path in Path("coordinator").rglob("*.py"))
    written = set(re.findall(r"""(?:_note|_log_event|LogEvent)\(\s*"(\w+)\"""", source)) | {"promoted", "shard_back"}
    assert written >= {"member", "state", "snapshot", "takeover", "scaled"}
    assert written - drawn == set(event_text._TEXTS)
