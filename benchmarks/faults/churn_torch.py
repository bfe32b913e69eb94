"""The same job under torch's elastic launcher: one `torchrun --max-restarts` with its DDP ranks and a checkpoint.

Processes: the launcher (torchrun, the agent), which the supervisor starts again as systemd does, with the end of the
ranks that it leaves behind, and the ranks. When a rank dies, torchrun ends the others and starts all of them; they
continue from the newest checkpoint. Steps since that are rolled back: only samples beyond the most so far count.

Covered are deaths of ranks and of the launcher. There is one launcher on one host; its rendezvous is inside it. Several
launchers with a rendezvous on another host would have one more process that must not die.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.faults.recovery_time import spread
from benchmarks.faults.supervisor import Death, Supervisor, Unit
from benchmarks.harness import checkout, runs

TORCH = "torch==2.13.0"
INSTALL_S = 900.0
LOOKS_PER_S = 10.0
MAIN = "from benchmarks.faults.churn_torch_trainer import main; main()"


def torch_python() -> Path | None:
    """Python of the virtual environment with torch, made at the first call; None where it cannot be made."""
    folder = checkout.ROOT / ".cache" / "churn-torch"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    print(f"installing {TORCH} for the comparison into {folder} (once)", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "-q", TORCH, "numpy"]
    try:
        subprocess.run(command, check=True, timeout=INSTALL_S, stdout=sys.stderr)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"torchrun takes no part: {error}", file=sys.stderr)
        return None
    done.touch()
    return python


class TorchJob:
    """One job of torchrun, with what a `Deployment` has.

    Parameters
    ----------
    given
        Options of the trainer, without the folder.
    ranks
        Number of ranks.
    """

    def __init__(self, run: runs.Run, python: Path, given: dict[str, Any], ranks: int) -> None:
        self._run, self._folder = run, run.folder
        variables = [f"CHURN={json.dumps({**given, 'folder': str(run.folder)})}", f"PYTHONPATH={checkout.ROOT}"]
        variables.append("OMP_NUM_THREADS=1")
        # In the store that torch shares by default, ranks of a restart find their predecessors' addresses, and fail.
        variables.append("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
        launch = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        launch += ["--max-restarts", "1000000", "--no-python", str(python), "-c", MAIN]
        self._launcher = Unit(run, "launcher", "launcher", ["env", *variables, *launch])
        self.supervisor = Supervisor()
        self.supervisor.add(self._launcher)
        self._seen: dict[str, tuple[int, int]] = {f"rank-{rank}": (0, 0) for rank in range(ranks)}
        self.names = ["launcher", *self._seen]
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
            try:
                now = int((self._folder / f"{name}.pid").read_text() or 0)
            except OSError:
                continue
            if now != pid:
                self._seen[name] = now, starts + 1
        return {"launcher": self._launcher.starts, **{name: starts for name, (_, starts) in self._seen.items()}}

    def kill(self, names: list[str], away_s: Mapping[str, float]) -> None:
        """Kill these processes; with the launcher its ranks, as the supervisor of a service does.

        torchrun starts all ranks again at once, whatever `away_s` is.
        """
        running = self._run.processes() if names else {}
        for name in names:
            if name == "launcher":
                self.supervisor.deaths.append(self._death(name, self._launcher.starts))
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                self._launcher.process.wait()
                self._launcher.start()
            elif self._seen[name][0] in running:
                self.supervisor.deaths.append(self._death(name, self._seen[name][1]))
                os.kill(self._seen[name][0], signal.SIGKILL)

    def _death(self, name: str, start: int) -> Death:
        part = "launcher" if name == "launcher" else "rank"
        return Death(time.monotonic(), time.time(), name, start, part)

    def trains(self) -> bool:
        """Whether it has trained."""
        return bool(self._looks)

    def looks(self) -> list[tuple[float, float]]:
        """(monotonic time in s, samples beyond the most so far)."""
        before = [0.0, *(samples for _, samples in self._looks)]
        return spread([(at_s, samples - last) for (at_s, samples), last in zip(self._looks, before, strict=False)])

    def ended(self) -> bool:
        """Whether the job is over."""
        return (self._folder / "result.json").exists() and self._launcher.over

    def result(self) -> dict[str, Any]:
        """Accuracy and samples."""
        found: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return found

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()
