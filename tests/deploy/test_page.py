"""The status page of real jobs in headless Chromium: one that waits, one that runs, one that failed; and hostile names.

With `DBELIEF_SCREENSHOTS` naming a folder, the screenshots are left there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.monitoring.status_page.application import StatusPage
from dbelief.monitor.status import to_dict
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.telemetry.http_server import WebServer
from tests.deploy.browser import DESK, PHONE, Browser, find_browser
from tests.processes.conftest import Operator, Role

pytestmark = pytest.mark.deploy

JOB = """
name: digits
model: {layers: [{dense: 64}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}, warm_start: null}
evaluate: {every: 1257}
deadlines: {beat_s: 60}
limits: {epochs: 2000}
shards: 2
replicas: 3
"""
QUIET = 0.005
"""Share of a picture that must be something else than its ground."""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    yield find_browser(tmp_path)
    if kept := os.environ.get("DBELIEF_SCREENSHOTS"):
        for picture in tmp_path.glob("*.png"):
            shutil.copy(picture, kept)


@pytest.fixture
def job(operator: Operator) -> tuple[Role, str, str]:
    """A job without members: its coordinator, where that listens, and where its page is."""
    role, address = operator.coordinator(operator.write_job(JOB), "--page", "127.0.0.1:0")
    return role, address, role.said(r"status page on (\S+)")


def looks_good(browser: Browser, url: str, name: str) -> None:
    """See that pictures of a page, wide and narrow, light and dark, hold something, and that nothing runs off them."""
    for size, where, dark in ((DESK, "desk", False), (PHONE, "phone", False), (PHONE, "phone-dark", True)):
        pixels = browser.picture(url, f"{name}-{where}", size, dark)
        ground = pixels[-1, -1]
        assert (ground.mean() < 0.5) == dark
        drawn = np.any(np.abs(pixels - ground) > 0.05, axis=2)
        assert drawn.mean() > QUIET, f"{name}-{where} is blank"
        assert not drawn[:, -4:].any(), f"{name}-{where} is wider than its window"


def test_a_job_without_members(browser: Browser, job: tuple[Role, str, str]) -> None:
    _, _, url = job
    texts = browser.texts(url)
    assert (texts["job"].strip(), texts["state"].strip()) == ("digits", "waiting")
    assert texts["why"].strip() == "waiting for shards (0 of 2 joined)"
    assert browser.console(url) == [], "nothing of the page is refused by its own policy"
    assert {"of-workers", "of-shards", "curves", "progress", "silent"}.isdisjoint(texts)
    looks_good(browser, url, "empty")


def test_a_job_that_runs(browser: Browser, operator: Operator, job: tuple[Role, str, str]) -> None:
    coordinator, address, url = job
    roles = operator.members(address, shards=2, workers=3)
    operator.until_samples("digits", 6 * 1257)
    texts = browser.texts(url)
    assert texts["state"].strip() == "training"
    assert texts["folder"].strip() == str(operator.folder / "runs" / "digits")
    assert "of 2,514,000 samples" in texts["done"]
    numbers = dict(line.split(" ", 1) for line in texts["numbers"].strip().splitlines())
    assert {"loss", "validation", "samples/s", "staleness", "epoch", "elapsed", "left"} == numbers.keys()
    assert float(numbers["loss"]) < 2.3
    assert numbers["validation"].endswith("%")
    workers = [line.split() for line in texts["workers"].strip().splitlines()]
    assert sorted(row[0] for row in workers) == ["0", "1", "2"]
    assert {row[1] for row in workers} <= {"training", "evaluating", "straggling"}
    assert sum(int(row[3].replace(",", "")) for row in workers) > 0, "samples a second"
    shards = [line.split() for line in texts["shards"].strip().splitlines()]
    assert [row[:2] for row in shards] == [["0", "serving"], ["1", "serving"]]
    events = texts["events"].strip().splitlines()
    assert any(re.fullmatch(r"\d\d:\d\d:\d\d job is training", line) for line in events)
    assert sum("joined" in line for line in events) == 5
    assert sum(int(row[-3].replace(",", "")) for row in shards) == 64 * 64 + 64 + 64 * 10 + 10
    assert {"loss", "validation", "staleness"} <= texts.keys()
    assert "samples" in texts["loss"]
    looks_good(browser, url, "running")
    coordinator.process.send_signal(signal.SIGTERM)
    assert [role.ends() for role in (coordinator, *roles)] == [0] * 6


def test_a_job_that_failed(browser: Browser, operator: Operator, job: tuple[Role, str, str]) -> None:
    coordinator, address, url = job
    roles = operator.members(address, shards=2, workers=3)
    operator.until_samples("digits", 3 * 1257)
    for worker in roles[2:]:  # else they hear of the end and leave, and the coordinator with them
        worker.process.send_signal(signal.SIGSTOP)
    with closing(CoordinatorClient(address)) as client:
        client.call("Report", wire.ReportRequest(trouble="no worker is left: worker-2 was killed by SIGKILL"))
        assert to_dict(client.status())["state"] == "failed"
    texts = browser.texts(url)
    assert texts["state"].strip() == "failed"
    assert texts["why"].strip() == "no worker is left: worker-2 was killed by SIGKILL"
    assert "silent" not in texts
    looks_good(browser, url, "failed")
    coordinator.process.send_signal(signal.SIGKILL)
    coordinator.process.wait()


def test_page_escapes_the_jobs_texts(browser: Browser) -> None:
    name = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    status = wire.StatusReply(job=name, state=wire.STATE_FAILED, reason=f"</p>{name}", run_folder=name)
    status.members.add(role=wire.ROLE_REPLICA, id=0, name=name, state=name)
    told: dict[str, Any] = to_dict(status)
    page = StatusPage()
    page.tell = lambda: told
    with closing(WebServer("127.0.0.1:0", page, "the status page")) as server:
        texts = browser.texts(server.url)
    assert texts["job"].strip() == name
    assert texts["why"].strip() == f"</p>{name}"
    assert name in texts["workers"]
    assert texts["folder"].strip() == name


def test_page_shows_rounds(browser: Browser) -> None:
    status = wire.StatusReply(job="rounds", state=wire.STATE_READY, staleness=[9, 0, 1], staleness_mean=0.2)
    status.rounds.CopyFrom(wire.RoundStatus(rounds=5, pushes_per_round=2, late_pushes=1, late_age=2, computing=0.5))
    told = to_dict(status)
    page = StatusPage()
    page.tell = lambda: told
    with closing(WebServer("127.0.0.1:0", page, "the status page")) as server:
        texts = browser.texts(server.url)
        looks_good(browser, server.url, "rounds")
    assert {"round 5", "replicas a round 2.00", "late by, mean 2.00", "computing 50 %"} <= {
        line.strip() for line in texts["numbers"].splitlines()
    }
    assert (texts["late-name"].strip(), texts["late-unit"].strip()) == ("age", "rounds")


def test_page_reports_an_unresponsive_coordinator(browser: Browser) -> None:
    with closing(WebServer("127.0.0.1:0", StatusPage(), "the status page")) as server:
        texts = browser.texts(server.url)
    assert "503 Service Unavailable: there is no job yet" in texts["silent"]
