"""Speeds on slow links: whole rounds of all hosts are counted, and every way is a job."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.workers import slow_links
from dbelief.job import parse_job


def events(*reported: tuple[float, int]) -> list[dict[str, float]]:
    return [{"elapsed_s": 10 + at_s, "samples": samples} for at_s, samples in reported]


def test_whole_rounds_are_counted() -> None:
    # Rounds of 64 samples take 2 s; two hosts report them apart, and of the last one a half.
    hosts = [
        part
        for number in range(5)
        for part in ((2.9 + 2 * number, 32 + 64 * number), (3 + 2 * number, 64 + 64 * number))
    ]
    found = events((0, 0), *hosts, (11.1, 320), (12.9, 352))
    assert slow_links.speed(found, 64) == pytest.approx(32)


def test_a_run_of_few_rounds_has_no_speed() -> None:
    found = events((0, 0), (1, 64), *((3 + number, 64 * number) for number in range(2, 6)))
    assert slow_links.speed(found, 64) is None


@pytest.mark.parametrize("model", list(slow_links.MODELS))
def test_every_way_is_a_job(model: str, tmp_path: Path) -> None:
    for way in slow_links.WAYS:
        job = parse_job(json.dumps(slow_links.job_of(model, way, 4)), tmp_path, way)
        assert job.replicas == 4
        assert job.strategy.batch == slow_links.BATCH


def test_a_peer_is_a_script_with_its_settings() -> None:
    for peer in slow_links.PEERS.values():
        assert Path(peer.command[1]).exists()
        assert peer.command[2] == str(slow_links.BATCH)
    for peer in slow_links.TORCHFT.values():
        steps, delay = map(int, peer.command[3:])
        assert 0 <= delay < steps == peer.steps, "torchft takes no other delay"


def test_without_torchft_its_ways_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert slow_links.installed(["diloco-32", *slow_links.PEERS]) == ["diloco-32", "ddp"]
    assert capsys.readouterr().err == "left out: the ways of torchft, which is not installed\n"
    assert slow_links.installed(["ddp"]) == ["ddp"]
    assert capsys.readouterr().err == ""
