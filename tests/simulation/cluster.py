"""A simulated cluster: starts the programs, restarts those that end too early, and runs them to the job's end."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from dbelief.errors import DbeliefError, UserError
from dbelief.process.clock import SystemClock
from dbelief.process.runtime import use_runtime
from dbelief.registry import MemoryRegistry
from dbelief.rpc.transport import use_transport

from .marks import marker
from .network import SimulatedNetwork
from .programs import operating_system, run_coordinator, run_shard, run_worker
from .runtime import SimulatedRuntime
from .scheduler import Process, Scheduler, Task

LIMIT_S = 600.0
"""Virtual seconds after which a job that has not ended is an error."""


class Cluster:
    def __init__(self, seed: int, job: str, folder: Path) -> None:
        self.scheduler = Scheduler(seed)
        self.folder = folder
        self.job = job
        self.processes: dict[str, Process] = {}
        self.programs: dict[str, Callable[[Process], None]] = {}
        self.log: list[str] = []
        self.over = False
        self.running = 0

    def note(self, text: str) -> None:
        self.log.append(f"{self.scheduler.now_s:9.4f} {text}")

    def run(self) -> None:
        with ExitStack() as stack:
            runtime = SimulatedRuntime(self.scheduler)
            registry = MemoryRegistry(SystemClock())
            stack.enter_context(use_runtime(runtime))
            self.network = SimulatedNetwork(self.scheduler)
            stack.enter_context(use_transport(self.network))
            stack.enter_context(operating_system(self.scheduler, registry))
            stack.callback(self.scheduler.close)
            self.scheduler.failed = self._task_failed
            marker.process = lambda: runtime.process.number
            marker.compute = lambda: runtime.sleep(self.scheduler.random.expovariate(1 / 0.03))
            (self.folder / "run" / "snapshots").mkdir(parents=True)
            job = self.folder / "job.yaml"
            job.write_text(self.job)
            for name in ("coordinator-0", "coordinator-1"):
                self.programs[name] = partial(run_coordinator, job=job, folder=self.folder / "run")
            for number in range(4):
                self.programs[f"shard-{number}"] = run_shard
            for number in range(3):
                self.programs[f"worker-{number}"] = run_worker
            for name in self.programs:
                self.start(name)
            self.ended = self.scheduler.run(lambda: self.over and not self.running, LIMIT_S)

    def start(self, name: str) -> None:
        if self.over:
            return
        process = self.processes[name] = self.scheduler.process(name)
        self.running += 1
        self.scheduler.spawn(process, "main", partial(self._main, process))
        self.note(f"{name} starts as process {process.number}")

    def _main(self, process: Process) -> None:
        try:
            self.programs[process.name](process)
            how = "ends"
        except DbeliefError as error:
            how = f"fails: {type(error).__name__}: {error}"
        self.note(f"{process.name} {how}")
        if process.name.startswith("coordinator") and how == "ends":
            self.over = True
        self._exit(process)

    def _exit(self, process: Process) -> None:
        self.running -= 1
        self.scheduler.end(process)
        self.network.ended(process, False)
        self.scheduler.at(0.3, partial(self.start, process.name))

    def kill(self, name: str) -> None:
        process = self.processes[name]
        if process.alive:
            self.note(f"{name} killed")
            self._exit(process)

    def _task_failed(self, task: Task) -> None:
        self.note(f"{task.process.name}: thread {task.name}: {task.error!r}")
        raise task.error
