"""What `dbelief bench wire` prints and leaves behind; no figure is held to anything here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dbelief.bench import peers, wire
from dbelief.bench.shards import Shards
from dbelief.errors import Failure

pytestmark = pytest.mark.processes
TINY = ["--mib", "1", "--rounds", "2", "--workers", "2", "--pushes", "6", "--push-mib", "1", "--steps", "3"]
WIRE = [sys.executable, "-P", "-m", "dbelief", "bench", "wire", *TINY]


def test_the_figures_are_told_as_json_and_nothing_is_left(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([*WIRE, "--json"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["mib"], found["rounds"]) == (1, 2)
    for name in ("pull", "push", "socket_pull", "socket_push", "copy"):
        assert found[f"{name}_ms"] > 0
    assert all(found[name] > 0 for name in ("pull_x", "push_x", "roundtrip_x", "copy_x", "shard_mib"))
    workers, small = found["workers"], found["small"]
    assert (workers["count"], workers["pushes"], workers["mib"]) == (2, 6, 1)
    assert workers["p99_over_p50"] == pytest.approx(workers["p99_ms"] / workers["p50_ms"])
    assert (small["parameters"], small["shards"], small["segments"], small["steps"]) == (203_530, 2, 17, 3)
    assert small["cpu_ms_per_step"] == pytest.approx(small["worker_cpu_ms"] + small["shards_cpu_ms"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*WIRE, "--rounds", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    until_s = time.monotonic() + 60
    while not list(tmp_path.glob("*/socket.log")):  # the last to come up
        assert process.poll() is None
        assert time.monotonic() < until_s
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == "Error: stopped before it was done"
    assert list(tmp_path.iterdir()) == []


def test_the_ratios_are_taken_within_a_round() -> None:
    seconds = {
        "pull": [2.0, 4.0, 8.0],
        "push": [2.0, 4.0, 8.0],
        "socket_pull": [1.0, 4.0, 2.0],
        "socket_push": [3.0] * 3,
    }
    assert wire._ratio(seconds["socket_pull"], seconds["pull"]) == 0.5
    assert wire._ratio(wire._sum(seconds, ""), wire._sum(seconds, "socket_")) == 8 / 7


def test_the_tables_name_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    figures = dict.fromkeys(
        [f"{name}_{what}" for name in ("pull", "push", "socket_pull", "socket_push", "copy") for what in ("ms", "x")],
        1.5,
    )
    gloo = dict.fromkeys(["gloo_pull_ms", "gloo_push_ms", "gloo_pull_x", "gloo_push_x", "gloo_roundtrip_x"], 2.5)
    workers = {"count": 4, "pushes": 400, "mib": 16, "p50_ms": 10.0, "p99_ms": 20.0, "p99_over_p50": 2.0}
    small = {"parameters": 7, "segments": 3, "shards": 2, **dict.fromkeys(["worker_cpu_ms", "shards_cpu_ms"], 1.0)}
    small |= {"cpu_ms_per_step": 2.0, "wall_ms": 3.0}
    whole = {"mib": 160, "rounds": 9, "roundtrip_x": 1.25, "workers": workers, "small": small, **figures}
    for found, named in ((whole, False), (whole | gloo, True)):
        wire.show(found)
        shown = capsys.readouterr().out
        assert ("gloo" in shown) == named
        assert all(word in shown for word in ("dbelief", "socket", "copy", "1.25", "4 workers", "2.00 times"))


def test_a_shard_that_does_not_come_up_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.processes.with_parent.__file__", str(tmp_path / "missing.py"))
    with pytest.raises(Failure, match="no shard to measure: ps-0 ended with exit code 2"):
        Shards(tmp_path, 4096)
    with pytest.raises(Failure, match="no socket to measure: socket ended with exit code 2"):
        peers.Peer("socket", tmp_path)


def test_a_peer_that_dies_is_told_of(tmp_path: Path) -> None:
    with peers.Peer("socket", tmp_path) as peer:
        assert peer.child.process is not None
        peer.child.process.kill()
        with pytest.raises(Failure, match="socket was killed by SIGKILL"):
            peer.ask({"bytes": 8})


@pytest.mark.torch
def test_gloo_takes_part_where_torch_is(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = wire._ratios(tmp_path, 1 << 20, 2)
    assert all(found[name] > 0 for name in ("gloo_pull_x", "gloo_push_x", "gloo_roundtrip_x"))
