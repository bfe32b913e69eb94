"""Speeds on slow links: whole rounds of all hosts are counted, and every way is a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.workers import slow_links
from dbelief.job import parse_job


def test_whole_rounds_are_counted() -> None:
    # Rounds of 64 samples take 2 s; hosts report them apart, and a part of the third only.
    reported = [(0.0, 0), (1.9, 32), (3.0, 64), (3.2, 64), (5.0, 128), (6.9, 160), (7.0, 192), (7.1, 224)]
    events = [{"elapsed_s": 10 + at_s, "samples": samples} for at_s, samples in reported]
    assert slow_links.speed(events, 64) == 32.0


@pytest.mark.parametrize("reported", [[(0.0, 0), (1.0, 64), (9.0, 120)], [(0.0, 0), (1.0, 64), (9.0, 128)]])
def test_a_run_of_less_than_two_rounds_has_no_speed(reported: list[tuple[float, int]]) -> None:
    events = [{"elapsed_s": at_s, "samples": samples} for at_s, samples in reported]
    with pytest.raises(SystemExit, match="rounds of 64 samples were completed; --seconds must be more"):
        slow_links.speed(events, 64)


@pytest.mark.parametrize("model", list(slow_links.MODELS))
def test_every_way_is_a_job(model: str, tmp_path: Path) -> None:
    for way in slow_links.WAYS:
        job = parse_job(json.dumps(slow_links.job_of(model, way, 4)), tmp_path, way)
        assert job.replicas == 4
        assert job.strategy.batch == slow_links.BATCH
