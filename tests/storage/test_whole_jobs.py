"""Whole jobs whose only shared thing is an S3 server: shards fail, all processes fail, and local disks are lost."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
import safetensors.numpy
from safetensors.numpy import load_file

import dbelief
from tests.processes.conftest import child, wait_for
from tests.storage.s3_server import MISSING, WHY
from tests.storage.site import TOTAL, Site

pytestmark = [
    pytest.mark.storage,
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=WHY),
]


def test_a_shard_and_the_coordinator_fail(site: Site) -> None:
    train = site.dbelief("train", str(site.job), "--quiet", wait_s=0.02)
    site.until_trained(1000)
    os.kill(child(train.process.pid, "ps-1"), signal.SIGKILL)
    wait_for(lambda: site.events("shard_back"), "the shard's return")
    os.kill(child(train.process.pid, "dbelief coordinator"), signal.SIGKILL)
    assert train.ends() == 0, site.log()
    summary = site.summary()
    assert summary["samples"] == TOTAL
    assert set(summary["died"]) >= {"shard 1", "coordinator"}
    assert site.events("takeover")
    assert len(site.sets()) == 2
    assert list(site.disk.iterdir()) == [], "nothing that is needed is on a disk"
    assert not (site.folder / "runs").exists()
    assert site.log().endswith(f"; see {site.url}\n")


def test_all_processes_and_disks_are_lost(site: Site) -> None:
    """A set of one shard, whose parameters are one segment, has each push in full or not at all: none is twice."""
    train = site.dbelief("train", str(site.job), "--quiet", "--set", "shards=1", wait_s=0.02)
    site.until_trained(2000)
    train.kill()
    shutil.rmtree(site.disk)
    newest = site.sets()[-1].parent.name

    assert site.dbelief("train", str(site.job), "--quiet").ends() == 2
    assert f"{site.url}: a run of this name is there; continue it with --resume, or give this one" in site.log()
    resumed = site.dbelief("train", str(site.job), "--quiet", "--resume")
    assert resumed.ends() == 0, site.log()
    summary = site.summary()
    assert (summary["samples"], summary["pushes_trained_twice"], summary["pushes_lost"]) == (TOTAL, 0, 0)
    assert summary["test_accuracy"] > 0.9
    assert sum(summary["samples_per_replica"].values()) == TOTAL
    assert int(newest.partition("-")[0]) >= 2000
    begun = [event["samples"] for event in site.events("progress")]
    assert min(begun) < 2000 < max(begun), "events of both legs"

    model = dbelief.load_model(site.url)
    assert model.job.name == "far"
    assert json.loads(site.output("evaluate", site.url))["accuracy"] == pytest.approx(summary["test_accuracy"])
    assert "done" in site.output("status", site.url)
    assert json.loads(site.output("status", "--json", site.url))["samples"] == TOTAL
    assert "far" in site.output("report", site.url, "--output", str(site.folder / "pictures"))
    assert (site.folder / "pictures" / "curves.png").exists()
    for vector in ([], ["--vector", "w"]):
        site.output("export", site.url, "--output", str(site.folder / "model.npz"), "--format", "npz", *vector)
    more = ["--set", "name=further", "--set", f"start_from={site.url}", "--set", "limits.epochs=1"]
    assert site.dbelief("train", str(site.job), "--quiet", *more).ends() == 0, site.log()
    assert list(site.disk.iterdir()) == []


def test_figures_are_those_of_a_folder(site: Site) -> None:
    """One replica is sequential: killed and resumed in a store, the same bits as undisturbed in a folder."""
    one = ["--quiet", "--set", "shards=1", "--set", "replicas=1", "--set", "strategy.lease=64"]
    train = site.dbelief("train", str(site.job), *one, wait_s=0.02)
    site.until_trained(2000)
    train.kill()
    shutil.rmtree(site.disk)
    assert site.dbelief("train", str(site.job), *one, "--resume").ends() == 0, site.log()
    local = site.folder / "runs"
    assert site.dbelief("train", str(site.job), *one, "--set", f"output={local}").ends() == 0, site.log()
    here = json.loads((local / "far" / "summary.json").read_text())
    for figure in ("samples", "test_accuracy", "test_loss", "validation_loss"):
        assert site.summary()[figure] == here[figure], figure
    (stored,) = (url for url in site.store.list(site.url) if url.name == "model.safetensors")
    models = [safetensors.numpy.load(site.store.read(stored)), load_file(local / "far" / "model.safetensors")]
    assert {name: values.tobytes() for name, values in models[0].items()} == {
        name: values.tobytes() for name, values in models[1].items()
    }


def test_a_run_in_progress_is_not_disturbed(site: Site) -> None:
    train = site.dbelief("train", str(site.job), "--quiet", "--set", "limits.epochs=1000", wait_s=0.05)
    site.until_trained(1)
    assert json.loads(site.output("status", "--json", site.url))["state"] == "training"
    assert site.dbelief("train", str(site.job), "--quiet", "--resume").ends() == 2
    assert f"{site.url}: a run is in progress there; end it first, or give this one another name" in site.log()
    train.process.send_signal(signal.SIGINT)
    assert train.ends() == 130
    assert site.summary()["reason"] == "stopped by Ctrl-C"


def test_a_bucket_that_is_absent(site: Site) -> None:
    train = site.dbelief("train", str(site.job), "--quiet", "--set", "output=s3://absent/runs")
    assert train.ends() == 2
    assert site.log() == "Error: s3://absent/runs/far: there is no such bucket\n"
