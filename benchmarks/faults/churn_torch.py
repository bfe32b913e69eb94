"""The same job under torch's elastic launcher: `torchrun --max-restarts` with its DDP ranks and a checkpoint.

One host: the launcher (torchrun, the agent), which the supervisor starts again as systemd does, with the end of the
ranks that it leaves behind, and the ranks. When a rank dies, torchrun ends the others and starts all of them; they
continue from the newest checkpoint. Steps since that are rolled back: only samples beyond the most so far count. The
rendezvous is inside the launcher.

Hosts of one rank each: a host's launcher and rank die together, and return when the plan says so. The others form a
smaller group meanwhile (`--nnodes 1:N`). The store of the rendezvous is a process of its own, which is not killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.faults.recovery_time import spread
from benchmarks.faults.supervisor import Death, Supervisor, Unit
from benchmarks.harness import checkout, runs
from benchmarks.harness.environments import TORCH, python_with
from dbelief.errors import RuntimeFailure

LOOKS_PER_S = 10.0
MAIN = "from benchmarks.faults.churn_torch_trainer import main; main()"
STORE = "import time; from torch.distributed import TCPStore as S; "
STORE += "store = S('127.0.0.1', {port}, is_master=True, wait_for_workers=False); time.sleep(1e9)"
RENDEZVOUS = "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
"""Seconds; by default 30 s until a group goes on without a member, which is noticed after 15 s."""


def torch_python() -> Path | None:
    """Python of the virtual environment with torch, made at the first call; None where it cannot be made."""
    try:
        return python_with("churn-torch", (TORCH, "numpy"))
    except RuntimeFailure as error:
        print(f"torchrun takes no part: {error}", file=sys.stderr)
        return None


class TorchJob:
    """One job of torchrun, with what a `Deployment` has.

    Parameters
    ----------
    given
        Options of the trainer, without the folder.
    ranks
        Number of ranks.
    hosts
        Whether each rank is on a host of its own, with a launcher; else one launcher has all ranks.
    """

    def __init__(self, run: runs.Run, python: Path, given: dict[str, Any], ranks: int, hosts: bool) -> None:
        self._run, self._folder = run, run.folder
        variables = [f"CHURN={json.dumps({**given, 'folder': str(run.folder)})}", f"PYTHONPATH={checkout.ROOT}"]
        variables.append("OMP_NUM_THREADS=1")
        # In the store that torch shares by default, ranks of a restart find their predecessors' addresses, and fail.
        variables.append("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
        train = ["--max-restarts", "1000000", "--monitor-interval", "0.1", "--no-python", str(python), "-c", MAIN]
        launch = [str(python), "-m", "torch.distributed.run"]
        self.supervisor = Supervisor()
        self._launchers = [f"worker-{rank}" for rank in range(ranks)] if hosts else ["launcher"]
        if hosts:
            port = runs.free_port()
            store = [str(python), "-c", STORE.format(port=port)]
            self.supervisor.add(Unit(run, "store", "store", store, ends=False))
            launch += ["--nnodes", f"1:{ranks}", "--nproc-per-node", "1", "--rdzv-id", "churn"]
            launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", RENDEZVOUS]
            launch += ["--local-addr", "127.0.0.1"]
        else:
            launch += ["--standalone", "--nproc-per-node", str(ranks)]
        for name in self._launchers:
            role, host = ("worker", [f"HOST={name}"]) if hosts else ("launcher", [])
            self.supervisor.add(Unit(run, name, role, ["env", *variables, *host, *launch, *train]))
        self._seen = {} if hosts else {f"rank-{rank}": (0, 0) for rank in range(ranks)}
        self.names = [*self._launchers, *self._seen]
        self._looks: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(1 / LOOKS_PER_S):
            samples = self._progress()
            if samples > (self._looks[-1][1] if self._looks else 0):
                self._looks.append((time.monotonic(), samples))

    def _progress(self) -> int:
        try:
            return int.from_bytes((self._folder / "progress").read_bytes(), "little")
        except OSError:
            return 0

    def starts(self) -> dict[str, int]:
        """How often each process was started so far, by name."""
        for name, (pid, starts) in self._seen.items():
            if (now := self._pid(name)) not in (0, pid):
                self._seen[name] = now, starts + 1
        launchers = {name: self.supervisor.units[name].starts for name in self._launchers}
        return {**launchers, **{name: starts for name, (_, starts) in self._seen.items()}}

    def _pid(self, name: str) -> int:
        """Pid of the newest rank of a host, or of the rank of this name; 0 where there was none."""
        try:
            return int((self._folder / f"{name}.pid").read_text() or 0)
        except OSError:
            return 0

    def kill(self, names: list[str], away_s: Mapping[str, float]) -> None:
        """Kill these processes; with a launcher its ranks, as the supervisor of a service does.

        A launcher starts its ranks again at once, whatever `away_s` is.
        """
        running = self._run.processes() if names else {}
        for name in names:
            if name in self._launchers:
                others = set(running) if name == "launcher" else {self._pid(name)}
                launcher = self.supervisor.units[name].process.pid
                self.supervisor.kill([name], away_s)
                for pid in others & set(running) - {launcher}:
                    with contextlib.suppress(ProcessLookupError):  # it ended with its launcher
                        os.kill(pid, signal.SIGKILL)
            elif self._seen[name][0] in running:
                self.supervisor.deaths.append(Death(time.monotonic(), time.time(), name, self._seen[name][1], "rank"))
                os.kill(self._seen[name][0], signal.SIGKILL)

    def trains(self) -> bool:
        """Whether it has trained."""
        return bool(self._looks)

    def looks(self) -> list[tuple[float, float]]:
        """(monotonic time in s, samples beyond the most so far)."""
        before = [0.0, *(samples for _, samples in self._looks)]
        return spread([(at_s, samples - last) for (at_s, samples), last in zip(self._looks, before, strict=False)])

    def ended(self) -> bool:
        """Whether the job is over."""
        return (self._folder / "result.json").exists()

    def result(self) -> dict[str, Any]:
        """Accuracy and samples."""
        found: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return found

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()
