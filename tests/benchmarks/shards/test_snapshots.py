"""The snapshot benchmark on a real shard; no figure is checked against a limit here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.shards import snapshots

pytestmark = pytest.mark.processes


def test_pushes_are_timed_with_and_without_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = snapshots.measure(1, 1, tmp_path)
    kinds = [(row["kind"], row["set"]) for row in found["pushes"]]
    assert kinds == [(kind, written) for kind in ("all of it", "one segment") for written in (False, True)]
    for calm, during in zip(found["pushes"][::2], found["pushes"][1::2], strict=True):
        assert calm["pushes"] == during["pushes"] >= snapshots.LEAST
        assert 0 < calm["p50_ms"] <= calm["p99_ms"] <= calm["longest_ms"]
    assert {*found["set_s_per_gib"]} == {"alone", "all of it", "one segment"}
    assert {*found["parts_s_per_gib"]} == {"copy", "checksum", "write"}
    assert found["vectors_mib"] <= found["before_mib"] <= found["peak_mib"]
    newest = max(folder for folder in tmp_path.iterdir() if folder.is_dir())
    assert (newest / "shard-0.json").exists()
    snapshots.show(found)
    assert '"pushes": [' in capsys.readouterr().out
