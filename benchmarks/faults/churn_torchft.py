"""The same job by torchft's DiLoCo: a lighthouse, and replica groups of one process, which are killed and return.

The lighthouse is not killed. A round is committed with those who are there; where one dies in an exchange, torchft
drops the round of all. Samples of committed rounds count, in each group that took part.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.faults.recovery_time import increases, spread
from benchmarks.faults.supervisor import Supervisor, Unit
from benchmarks.harness import checkout, runs

LOOKS_PER_S = 10.0
RESULT_S = 60.0
MAIN = "from benchmarks.faults.churn_torchft_trainer import main; main()"


class TorchftJob:
    """One job of torchft, with what a `Deployment` has.

    Parameters
    ----------
    given
        Options of the trainer, without the folder, the lighthouse and the name; and `samples` or `seconds`, after
        which the job ends.
    learners
        Number of replica groups.
    """

    def __init__(self, run: runs.Run, given: dict[str, Any], learners: int) -> None:
        self._folder, self._given = run.folder, given
        address = f"127.0.0.1:{runs.free_port()}"
        self.supervisor = Supervisor()
        lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--min_replicas", "1", "--bind"]
        # A quorum waits a second, not a minute, for a group whose heartbeat is there and which has not joined it.
        waits = ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "2000"]
        self.supervisor.add(Unit(run, "lighthouse", "lighthouse", [*lighthouse, address, *waits], ends=False))
        self._learners = [f"worker-{number}" for number in range(learners)]
        shared = {**given, "folder": str(run.folder), "lighthouse": f"http://{address}"}
        for name in self._learners:
            variables = [f"CHURN={json.dumps({**shared, 'name': name})}", f"PYTHONPATH={checkout.ROOT}"]
            command = ["env", *variables, "OMP_NUM_THREADS=1", sys.executable, "-c", MAIN]
            self.supervisor.add(Unit(run, name, "worker", command))
        self.names = list(self.supervisor.units)
        self._looks: dict[str, list[tuple[float, float]]] = {name: [] for name in self._learners}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(1 / LOOKS_PER_S):
            for name, looks in self._looks.items():
                looks.append((time.monotonic(), float(self._counted(name))))

    def _counted(self, name: str) -> int:
        try:
            return int.from_bytes((self._folder / f"{name}.samples").read_bytes(), "little")
        except OSError:
            return 0

    @property
    def samples(self) -> int:
        """Samples of committed rounds."""
        return sum(map(self._counted, self._learners))

    def starts(self) -> dict[str, int]:
        """How often each process was started so far, by name."""
        return {name: unit.starts for name, unit in self.supervisor.units.items()}

    def kill(self, names: list[str], away_s: Mapping[str, float]) -> None:
        """Kill these processes; see `Supervisor.kill`."""
        self.supervisor.kill(names, away_s)

    def trains(self) -> bool:
        """Whether every group has trained."""
        return all(looks and looks[-1][1] > 0 for looks in self._looks.values())

    def looks(self) -> list[tuple[float, float]]:
        """(monotonic time in s, samples since that group's last look), over all groups."""
        return [look for looks in self._looks.values() for look in spread(increases(list(looks)))]

    def ended(self) -> bool:
        """Whether it has as many samples, or has trained for as many seconds, as are given."""
        if "samples" in self._given:
            return self.samples >= int(self._given["samples"])
        began_s = [next((at_s for at_s, value in looks if value), None) for looks in self._looks.values()]
        known = [at_s for at_s in began_s if at_s is not None]
        return bool(known) and time.monotonic() - min(known) >= self._given["seconds"]

    def result(self) -> dict[str, Any]:
        """Samples, and the accuracy of a group that runs at the end."""
        samples = self.samples
        running = [unit for unit in self.supervisor.units.values() if unit.role == "worker" and not unit.waits]
        for unit in running:
            unit.process.send_signal(signal.SIGTERM)
        results = [self._folder / f"{unit.name}.json" for unit in running]
        found = runs.wait_for(lambda: next((one for one in results if one.exists()), None), "a result", RESULT_S)
        return {"samples": samples, **json.loads(found.read_text())}

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()
