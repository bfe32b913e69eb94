"""Output of `dbelief bench wire` and its clean-up; no figure is checked against a limit here."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import RuntimeFailure
from dbelief.tools.bench import peers, wire, wire_table, workers
from dbelief.tools.bench.shards import Shards
from dbelief.tools.bench.workers import TRANSPORTS

pytestmark = pytest.mark.processes
TINY = [
    "--seconds",
    "3600",
    "--sizes",
    "1",
    "--rounds",
    "1",
    "--workers",
    "1,2",
    "--shards",
    "1",
    "--turns",
    "6",
    "--crowd-mib",
    "1",
]
WIRE = [sys.executable, "-P", "-m", "dbelief", "bench", "wire", *TINY, "--steps", "3"]


@pytest.mark.long
def test_json_figures_are_complete_and_no_file_is_left(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([*WIRE, "--json"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    parts = ["one worker and one shard, 1 MiB", "several workers and shards, 1 MiB", "a model of MNIST's size"]
    assert [line for line in done.stderr.splitlines() if line.startswith("measuring")] == [
        f"measuring: {part}" for part in parts
    ]
    found: dict[str, Any] = json.loads(done.stdout)
    both, ours = ["pull", "push"], [f"dbelief, {transport}" for transport in TRANSPORTS]
    turns: dict[str, list[str]] = {}
    for row in found["ways"]:
        turns.setdefault(row["way"], []).append(row["what"])
        assert (row["mib"], row["rounds"]) == (1, wire.MORE)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["x"] > 0
        assert row["gb_per_s"] > 0
    assert turns == {
        **{way: [*both, "put", "exchange", "round trip"] for way in ours},
        **{way: [*both, "round trip"] for way in ("socket", "socket, aligned memory")},
        "copy": ["copy"],
    }
    crowds = {(row["transport"], row["what"], row["workers"], row["shards"]) for row in found["crowds"]}
    assert crowds == {(transport, what, count, 1) for transport in TRANSPORTS for what in both for count in (1, 2)}
    for row in found["crowds"]:
        assert row["turns"] >= 6
        assert row["p99_over_p50"] == pytest.approx(row["p99_ms"] / row["p50_ms"])
        assert row["gb_per_s"] > 0
    for small in found["small"]:
        assert (small["parameters"], small["shards"], small["segments"], small["steps"]) == (203_530, 2, 6, 3)
        assert small["cpu_ms_per_step"] == pytest.approx(small["worker_cpu_ms"] + small["shards_cpu_ms"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*WIRE, "--rounds", "100000"]
    # A test that a shell runs in the background ignores the signal, and so would the process.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    signal.signal(signal.SIGINT, before)
    try:
        until_s = time.monotonic() + 60
        while len(list(tmp_path.glob("*/worker-*.log"))) < 2 * len(TRANSPORTS):  # the last to come up
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.terminate()  # no effect on a process that has ended
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == "Error: stopped before it was done"
    assert list(tmp_path.iterdir()) == []


def row(way: str, what: str) -> dict[str, Any]:
    numbers = {"p50_ms": 10.0, "p99_ms": 20.0, "gb_per_s": 1.5, "x": 1.25}
    return {"mib": 160, "rounds": 9, "way": way, "what": what, **numbers}


def test_tables_name_measured_ways(capsys: pytest.CaptureFixture[str]) -> None:
    ways = [row("dbelief, tcp", what) for what in ("push", "pull", "exchange", "round trip")]
    ways += [row("socket", "pull"), row("copy", "copy")]
    crowd = {"workers": 4, "shards": 2, "transport": "tcp", "what": "push", "turns": 100, "mib": 16, "gb_per_s": 2.125}
    small = {"transport": "tcp", "parameters": 7, "segments": 3, "shards": 2, "cpu_ms_per_step": 2.0, "wall_ms": 3.0}
    small |= dict.fromkeys(["worker_cpu_ms", "shards_cpu_ms"], 1.0)
    wire_table.show({"ways": ways, "small": [small], "crowds": [{**crowd, "p50_ms": 1.0, "p99_ms": 2.0}]})
    shown = capsys.readouterr().out
    for words in ("160 MiB, 9 rounds", "2.12", "1.25"):
        assert words in shown
    lines = [line for line in shown.splitlines() if "pu" in line or "exchange" in line or "trip" in line]
    order = [word for line in lines for word in ("pull", "push", "round trip", "exchange") if word in line]
    assert order[:4] == ["pull", "push", "round trip", "exchange"], "whatever their order was"


def test_failing_shard_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.launch.child_process.with_parent.__file__", str(tmp_path / "missing.py"))
    with pytest.raises(RuntimeFailure, match="no shard to measure: ps-0 ended with exit code 2"):
        Shards(tmp_path, 4096)
    with pytest.raises(RuntimeFailure, match="no socket to measure: socket ended with exit code 2"):
        peers.Peer("socket", tmp_path)


def test_worker_without_shared_memory_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SHARES", "shares what it never says")
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(tmp_path, 4096))
        workers.worker(stack, tmp_path, shards, transport="tcp")
        with pytest.raises(RuntimeFailure, match=r"worker-1-shm-of-.* shares no memory with its shards"):
            workers.worker(stack, tmp_path, shards, 1, transport="shm")


def test_dead_peer_is_reported(tmp_path: Path) -> None:
    with peers.Peer("socket", tmp_path) as peer:
        assert peer.child.process is not None
        peer.child.process.kill()
        with pytest.raises(RuntimeFailure, match="socket was killed by SIGKILL"):
            peer.ask({"bytes": 8, "fast": False})
