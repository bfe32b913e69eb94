"""The page of two sites: its commands on two hosts with 50 Mbit/s between them, made by the program DBELIEF_HOSTNET."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from benchmarks.harness import hosts
from dbelief.rundir.summary import read_summary

from .blocks import extract
from .run_page import ROOT, Folder

HOSTNET = os.environ.get("DBELIEF_HOSTNET")
PAGE = "docs/how-to/two_sites.md"
EPOCHS, SAMPLES = "limits: {epochs: 4}", 800
RATE_MBIT = 50.0
SECONDS = 500.0
"""After which the hosts are removed, whatever the commands do."""
OWN_MEMORY = ["sh", "-c", 'mount -t tmpfs own /dev/shm && exec "$@"', "sh"]
"""Hosts of one machine could share memory past the link."""

pytestmark = [
    pytest.mark.torch,
    pytest.mark.processes,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the torch extra is not installed"),
    pytest.mark.skipif(HOSTNET is None, reason="DBELIEF_HOSTNET names no program that makes hosts"),
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts are made by root"),
]


def test_its_commands_train_over_the_link(tmp_path: Path) -> None:
    assert HOSTNET is not None
    prefix = f"dbp{os.getpid() % 10_000}"
    text = (ROOT / PAGE).read_text()
    assert EPOCHS in text, "a shorter job"
    blocks = extract(PAGE, text.replace(EPOCHS, f"limits: {{samples: {SAMPLES}}}"))
    folder = Folder(
        tmp_path,
        pictures=False,
        on_host=lambda number: [*hosts.inside(prefix, int(number)), *OWN_MEMORY],
    )
    folder.prepare()
    pages = (path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    (tmp_path / "text.txt").write_text(2 * "".join(pages).encode("ascii", "ignore").decode())
    with hosts.network(Path(HOSTNET), prefix, 2, RATE_MBIT, SECONDS):
        folder.run([block for block in blocks if block.kind in ("host", "file")])
    summary = read_summary(tmp_path / "runs" / "sites" / "summary.json")
    assert (summary.state, summary.samples, summary.members_lost) == ("done", SAMPLES, 0)
    assert sorted(summary.samples_per_replica) == ["0", "1"]
    assert min(summary.samples_per_replica.values()) > 0
    assert sorted(path.name for path in (tmp_path / "state" / "sites").iterdir()) == [
        f"replica-{number}.safetensors" for number in range(2)
    ]
