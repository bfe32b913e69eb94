"""Figures of a window from statuses and events, and times from a kill on."""

from __future__ import annotations

import dataclasses
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulate import runs
from benchmarks.simulate.plan import COORDINATOR, Configuration, PlannedKill, SlowNet, make_plan
from benchmarks.simulate.real_runs import failovers, fleet, measured
from benchmarks.simulate.real_runs.deployed_job import Places
from benchmarks.simulate.real_runs.failovers import KilledProcess
from benchmarks.simulate.real_runs.fleet import Processors
from benchmarks.simulate.real_runs.own_step import OwnStep
from benchmarks.simulate.real_runs.step_spread import middle_spread
from dbelief.job import build_job

ALONE, PROCESSORS = OwnStep(0.01, 0.1), Processors(0.9, 0.8)


def progress(at_s: float, samples: int) -> dict[str, Any]:
    return {"event": "progress", "elapsed_s": at_s, "samples": samples}


def status(*rows: tuple[int, int, float]) -> dict[str, Any]:
    """Of workers with so many steps, pushes and mean staleness; each step has 10 samples, each push 400 bytes."""
    members = []
    for number, (steps, pushes, stale) in enumerate(rows):
        totals: dict[str, Any] = {
            "incarnation": 7,
            "steps": steps,
            "pushes": pushes,
            "sent": 400 * pushes,
            "received": 800 * pushes,
        }
        totals |= {"seconds": {"compute": 0.1 * steps, "push": 0.02 * pushes}, "processors": None}
        row = {"role": "worker", "id": number, "state": "training", "staleness": stale, "totals": totals}
        members.append({**row, "samples": 10 * steps})
    return {"elapsed_s": float(rows[0][0]), "members": members}


def test_a_speed_is_that_of_the_window() -> None:
    events = [progress(0.2 * n, 100 * n if n < 50 else 5_000 + 10 * (n - 50)) for n in range(100)]
    assert measured.speed(events, 0.0, 9.9) == pytest.approx(500)
    assert measured.speed(events, 10.1, 20.0) == pytest.approx(50)
    assert measured.speed(events, 0.0, 0.7) is None


def test_a_batch_method_has_whole_passes() -> None:
    events = [{"event": "pass", "elapsed_s": 2.0 * n, "samples": 1_000} for n in range(10)]
    assert measured.passes_speed(events, 1.0, 9.0) == pytest.approx(500)
    assert measured.passes_speed(events, 1.0, 3.0) is None


def test_staleness_and_bytes_are_those_between_two_statuses() -> None:
    before, after = status((10, 10, 1.0), (10, 10, 1.0)), status((30, 30, 2.0), (20, 20, 1.0))
    assert measured.staleness(before, after) == pytest.approx((50 + 10) / 30)
    assert measured.staleness(before, before) is None
    one = next(one for one in make_plan(1) if one.kind == "downpour")
    rows = measured.worker_rows(build_job(dict(one.job), Path()), before, after)
    assert [(row["steps"], row["pushes"], row["sent"]) for row in rows] == [(20, 20, 8_000), (10, 10, 4_000)]
    assert rows[0]["seconds"] == {"compute": pytest.approx(2.0), "push": pytest.approx(0.4)}
    assert measured.bytes_per_s(rows, "sent", 600.0, 1.0) == pytest.approx(40 * 600)
    batch = measured.batch_rows(before, after)
    assert measured.bytes_per_s(batch, "received", 600.0, 2.0) == pytest.approx(12_000)


def test_bytes_of_a_group_are_those_of_all_edges() -> None:
    edges = [{"to": 0, "source": 1, "bytes": 300}, {"to": 1, "source": 0, "bytes": 500}]
    assert measured.group_bytes({"workers": [{"steps": 4}, {"steps": 4}], "edges": edges}) == 200


def test_other_programs_have_what_no_process_of_the_run_used() -> None:
    before, after = {"": 100.0, "ps-0": 4.0}, {"": 130.0, "ps-0": 9.0, "worker-0": 3.0}
    assert measured.processors_used(before, after, 10.0) == ({"ps-0": 0.5}, 2.5)
    times = measured.processors({})
    assert set(times) >= {"", measured.BENCHMARK}


def killed(role: str) -> KilledProcess:
    return KilledProcess(role, role, 1, at_s=50.0, at_wall_s=1_000.0)


def event(after_s: float, what_happened: str, /, **fields: Any) -> dict[str, Any]:
    return {"time": datetime.fromtimestamp(1_000.0 + after_s, UTC).isoformat(), "event": what_happened, **fields}


def test_a_role_serves_from_its_event_on() -> None:
    events = [event(-1.0, "takeover"), event(0.5, "member", what="died", role="shard", id=0, name="ps-0", reason="")]
    events += [
        event(2.5, "shard_back", shard=0),
        event(3.0, "promoted", shard=0),
        event(4.0, "takeover", state="ready"),
    ]
    for role, after_s in (("shard", 2.5), ("followed shard", 3.0), ("coordinator", 4.0)):
        phases = failovers.phases_of(killed(role), events)
        assert phases[0]["after_s"] == 0.5
        assert failovers.served_s(killed(role), phases, []) == after_s
        assert failovers.served_s(killed(role), phases[:1], []) is None


def test_a_worker_serves_from_its_first_samples_on() -> None:
    looks = [[(49.0, 9.0), (53.0, 9.0)], [(49.9, 90.0), (50.01, 91.0), (52.0, 0.0), (52.5, 8.0)]]
    assert failovers.served_s(killed("worker"), [], looks) == 2.5
    assert failovers.served_s(killed("worker"), [], [looks[0], looks[1][:-1]]) is None


def test_the_speed_is_back_after_the_gap() -> None:
    times = [40 + 0.1 * n for n in range(200)]
    looks = [[(at_s, 100 * (at_s - (3 if at_s > 53 else max(0.0, at_s - 50)))) for at_s in times]]
    assert failovers.recovered_s(killed("worker"), looks, 100.0) == pytest.approx(3.9, abs=0.3)
    assert failovers.recovered_s(killed("worker"), [[(at_s, 100 * at_s) for at_s in times]], 100.0) == 0.0
    assert failovers.recovered_s(killed("worker"), [], 100.0) is None


def test_a_spread_leaves_pauses_out() -> None:
    assert middle_spread([0.01] * 57 + [0.5] * 3) == pytest.approx(0.0)
    assert middle_spread([0.01, 0.03] * 30) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_fleet_has_all_processes(seed: int) -> None:
    for one in make_plan(seed):
        groups = fleet.fleet_of(one, None if one.kind == COORDINATOR else ALONE, PROCESSORS)["groups"]
        assert len({group["name"] for group in groups}) == len(groups)
        workers = sum(group["machines"] * group["workers"] for group in groups)
        assert workers == (one.members or len(one.waits_s))
        shards = sum(group["machines"] * group["shards"] for group in groups)
        assert shards == one.job["shards"] * one.job.get("replication", 1)
        assert sum(group["machines"] for group in groups if group["coordinator"]) == 1
        assert all(("link" in group) == (one.link is not None) for group in groups)
        if one.waiting:
            assert {group["step"] for group in groups if group["workers"]} == {
                f"{1e3 * (wait_s + ALONE.seconds):.4g}ms" for wait_s in one.waits_s
            }


def test_a_follower_is_on_another_host() -> None:
    drawn = next(one for one in make_plan(1) if one.kind == "downpour")
    job = {**drawn.job, "shards": 2, "replication": 2}
    beside = dataclasses.replace(drawn, job=job, waits_s=(0.1,) * 3, link=SlowNet(100, 1.0, apart=False))
    apart = dataclasses.replace(beside, link=SlowNet(100, 1.0, apart=True))
    assert (list(Places.of(beside).shards), list(Places.of(beside).workers)) == ([1, 2, 3, 1], [1, 2, 3])
    assert (list(Places.of(apart).shards), Places.of(apart).count) == ([1, 2, 3, 4], 7)
    assert Places.of(dataclasses.replace(beside, link=None)).count == 1


def test_runs_are_mixed_and_go_on_where_they_ended(tmp_path: Path) -> None:
    plan = make_plan(1)
    order = runs.ordered(plan, 1)
    assert sorted(one.number for one in order) == list(range(40))
    assert order == runs.ordered(plan, 1) != runs.ordered(plan, 2)
    assert {one.part for one in order[:15]} == {one.part for one in plan}
    one = random.Random(0).choice(order)
    runs.write(tmp_path, one, {"measured": {}, "error": None, "fleet": {"groups": []}, "events": [{"event": "state"}]})
    assert one not in list(runs.missing(order, tmp_path))
    assert len(list(runs.missing(order, tmp_path))) == 39
    written = sorted(path.name for path in runs.place(tmp_path, one.number).iterdir())
    assert written == ["events.jsonl", "fleet.yaml", "job.yaml", "run.json"]


def test_a_run_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Configuration(
        3, "predicted", "downpour", make_plan(1)[0].job, "small", (0.0,), None, PlannedKill("worker", 0)
    )
    monkeypatch.setattr(
        runs, "_figures", lambda *_: (_ for _ in ()).throw(TimeoutError("waited 120 s for all workers"))
    )
    record = runs.run(one, 1.0, None, 1.0)
    assert record["error"] == "TimeoutError: waited 120 s for all workers"
    assert len(record["failures"]) == runs.ATTEMPTS
    assert "measured" not in record
