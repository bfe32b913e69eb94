"""Data in an S3 server is the data in a folder, to the bit; a job fetches it once for a machine."""

from __future__ import annotations

import json
import logging
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dbelief.url import parse_url
from tests.dbelief.data.sources import NEEDS, SOURCES, check_same, copy, placed, write_source
from tests.storage.s3_server import MISSING, WHY, S3Server
from tests.storage.site import Site

pytestmark = [pytest.mark.storage, pytest.mark.skipif(bool(MISSING), reason=WHY)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_in_s3_is_the_one_in_a_folder(name: str, tmp_path: Path, server: S3Server) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    (tmp_path / "here").mkdir()
    check_same(name, tmp_path / "here", parse_url(f"s3://bucket/sources/{tmp_path.name}"))


JOB = """
name: far
model: {layers: [{embedding: {entries: 50, width: 8}}, {dense: 50}], loss: softmax_cross_entropy}
data: DATA
strategy: {name: downpour, batch: 8, rule: {name: adagrad, rate: 0.03}, warm_start: null}
limits: {epochs: 4}
shards: 2
replicas: 3
"""


@pytest.mark.processes
@pytest.mark.long
def test_a_job_of_three_workers_fetches_its_tokens_once(
    site: Site, server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = parse_url(f"s3://bucket/{site.folder.name}/tokens")
    fields = placed(write_source("tokens", site.folder), prefix)
    np.save(site.folder / "new.npy", np.arange(8).reshape(2, 4))
    copy(site.folder, prefix)
    site.job.write_text(JOB.replace("DATA", json.dumps(fields)))
    logging.getLogger("werkzeug").setLevel(logging.INFO)
    with caplog.at_level(logging.INFO, logger="werkzeug"):
        for command in ("check", "plan", "train"):
            arguments = ("job", "check") if command == "check" else (command,)
            assert site.dbelief(*arguments, str(site.job)).ends() == 0, site.log()
        assert "accuracy" in site.output("evaluate", "runs/far")
        site.output("predict", "runs/far", f"{prefix}/new.npy")
    fetched = re.findall(r"GET /bucket/\S+/tokens/(\S+) HTTP", "\n".join(caplog.messages))
    assert sorted(fetched) == ["a.bin", "b.bin", "held.npy", "new.npy"]
