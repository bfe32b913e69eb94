"""The comparison with torch and Ray, where they are installed and where not; no figure is checked against a limit."""

from __future__ import annotations

import importlib.util
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.wire import peers
from benchmarks.wire.ray_peer import Ray
from benchmarks.wire.torch_peer import Gloo, TorchRpc


def row(way: str, what: str, beside: str | None = None) -> dict[str, Any]:
    numbers = {"p50_ms": 10.0, "p99_ms": 20.0, "gb_per_s": 1.5, "x": 1.25}
    return {"mib": 160, "rounds": 9, "beside": beside, "way": way, "what": what, **numbers}


def test_tables_name_measured_and_missing_ways(capsys: pytest.CaptureFixture[str]) -> None:
    ways = [row("socket", "pull"), row("socket", "pull", "Ray"), row("Ray", "pull", "Ray")]
    peers.show({"ways": ways, "missing": {"gloo": "torch is not installed"}})
    shown = capsys.readouterr().err
    for words in ("160 MiB, 9 rounds", "Ray beside it", "gloo took no part: torch is not installed", "1.25"):
        assert words in shown


@pytest.mark.processes
def test_missing_or_failing_peers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "torch" else None)
    missing: dict[str, str] = {}
    here = peers.installed(1, missing)
    assert [(other.name, other.busy) for other in here] == [("gloo", False), ("torch RPC", True)]
    assert missing == {"Ray": "ray is not installed"}
    monkeypatch.setattr("dbelief.launch.child_process.with_parent.__file__", str(tmp_path / "missing.py"))
    with ExitStack() as stack:
        assert peers.begin(stack, tmp_path, here, missing) == []
    assert {"gloo", "torch RPC", "Ray"} == {*missing}
    assert missing["torch RPC"].startswith("no torch-rpc to measure: torch-rpc-0 ended with exit code 2")


@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="without torch")
def test_peer_process_without_its_package_is_reported(tmp_path: Path) -> None:
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        assert peers.begin(stack, tmp_path, [peers.Other("gloo", "torch", Gloo, busy=False)], missing) == []
    assert "ModuleNotFoundError: No module named 'torch'" in missing["gloo"]


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.parametrize("kind", [Gloo, TorchRpc])
def test_torch_takes_part_where_it_is(kind: type[Gloo] | type[TorchRpc], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with ExitStack() as stack:
        way = kind(stack, tmp_path)
        for size in (1 << 20, 2 << 20):
            way.prepare(size)
            assert all(way.turn(what) > 0 for what in way.turns)


@pytest.mark.processes
def test_ray_takes_part_where_it_is_and_leaves_nothing() -> None:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as stack:  # short: paths of its sockets
        way = Ray(stack, Path(folder), 2 << 20)
        for size in (1 << 20, 2 << 20):
            way.prepare(size)
            assert all(way.turn(what) > 0 for what in way.turns)
