"""The processes of one configuration: a coordinator, shards and workers on this machine, or on hosts with links."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from benchmarks.faults.deployment import registry_command
from benchmarks.faults.shard_parts import leaders
from benchmarks.harness import hosts, runs
from benchmarks.simulate.plan import Configuration
from benchmarks.simulate.real_runs.looks import Onlooker
from benchmarks.workers.slow_links import Hosts
from dbelief.errors import DataError
from dbelief.job.document.yaml_document import to_yaml
from dbelief.rundir.events import read_events

JOB = "simulate"
START_S = 120.0
PORT, REGISTRY_PORT, METRICS_PORT = 7070, 7071, 7072
"""Of a host that nothing else runs on; on loopback free ones."""


@dataclass(frozen=True)
class Places:
    """The host of each process, from 1; without a link all are this machine."""

    shards: Sequence[int]
    workers: Sequence[int]

    @property
    def count(self) -> int:
        """Number of hosts."""
        return max(*self.shards, *self.workers)

    @classmethod
    def of(cls, one: Configuration) -> Places:
        """A host for each worker; shards beside them in turn, a follower on another host, or on hosts of their own."""
        workers, copies = len(one.waits_s), one.job["shards"] * one.job["replication"]
        if one.link is None:
            return cls([1] * copies, [1] * workers)
        if one.link.apart:
            return cls(range(1, copies + 1), range(copies + 1, copies + workers + 1))
        return cls([1 + number % workers for number in range(copies)], range(1, workers + 1))


class DeployedJob:
    """The running processes of one configuration; see `deployed_job`.

    Attributes
    ----------
    processes
        The present process of each name: registry, coordinator, ps-N, worker-N.
    onlooker
        On the coordinator's host.
    """

    def __init__(self, run: runs.Run, one: Configuration, used: Hosts) -> None:
        self.run, self._one, self._used = run, one, used
        self.processes: dict[str, Popen[bytes]] = {}
        self._commands: dict[str, tuple[list[str], list[str]]] = {}
        places, job = Places.of(one), run.folder / "job.yaml"
        job.write_text(to_yaml({**one.job, "output": str(run.folder)}))
        listen, ready = f"{used.address(1)}:{self._port(PORT)}", run.folder / "address"
        coordinator = ["coordinator", str(job), "--listen", listen, "--name", "coordinator", "--no-pictures"]
        coordinator += ["--ready-file", str(ready)]
        if one.kill is not None and one.kill.role == "coordinator":
            registry = self._port(REGISTRY_PORT)
            self._start("registry", 1, registry_command(run.folder / "registry", registry))
            coordinator += ["--registry", f"redis://127.0.0.1:{registry}"]
        self._start("coordinator", 1, [*runs.COMMAND, *coordinator])

        def listens() -> bool | None:
            self.check()
            return ready.exists() or None

        runs.wait_for(listens, "the coordinator", START_S)
        member = ["--coordinator", listen]
        for number, host in enumerate(places.shards):
            own = ["--name", f"ps-{number}", "--listen", f"{used.address(host)}:0"]
            self._start(f"ps-{number}", host, [*runs.COMMAND, "ps", *member, *own])
        counted = []
        for number, (host, wait_s) in enumerate(zip(places.workers, one.waits_s, strict=True)):
            own = ["--name", f"worker-{number}", "--number", str(number), "--compute-wait", f"{wait_s:g}"]
            # Namespaces of one machine have one file system, and could share memory past the link.
            own += ["--no-shared-memory"] if one.link is not None else []
            if one.kill is not None:
                counted.append(f"{used.address(host)}:{self._port(METRICS_PORT)}")
                own += ["--metrics", counted[-1]]
            self._start(f"worker-{number}", host, [*runs.COMMAND, "worker", *member, *own])
        self.onlooker = Onlooker(run, used.inside(1), listen, counted)
        self.processes["onlooker"] = self.onlooker.process

    def _port(self, own: int) -> int:
        return own if self._one.link is not None else runs.free_port()

    def _start(self, name: str, host: int, command: list[str]) -> None:
        self._commands[name] = (command, self._used.inside(host))
        self.start(name)

    def start(self, name: str) -> None:
        """Start the process of this name, again after it has ended."""
        command, prefix = self._commands[name]
        self.processes[name] = self.run.start_program(name, [*prefix, *command])

    def kill(self, role: str) -> str:
        """Kill a process of this role; its name."""
        name = {"worker": "worker-0", "coordinator": "coordinator"}.get(role) or leaders(self.events())[0]
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()
        return name

    def check(self) -> None:
        """Raise `SystemExit` where a process has ended, with its last lines."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                lines = self.run.output(name)[-3:] if name in self._commands else []
                raise SystemExit("; ".join([f"{name} ended with exit code {process.poll()}", *lines]))

    def events(self) -> list[dict[str, Any]]:
        """The job's events so far."""
        try:
            return list(read_events(self.run.run / "events.jsonl"))
        except (DataError, OSError):
            return []  # not written yet

    def train(self, steps: int) -> dict[str, Any]:
        """Wait until each worker has made so many mini-batches, or bundles, and each shard has its follower; a status.

        Raises
        ------
        TimeoutError
            It takes more than `START_S`.
        """

        def trains() -> dict[str, Any] | None:
            self.check()
            time.sleep(0.2)
            status: dict[str, Any] | None = self.onlooker.ask("status")
            rows = status["members"] if status else []
            ready = [row for row in rows if row["role"] == "worker" and made(row) >= steps]
            followers = sum(row["role"] == "ps" and row["follows"] and row["state"] == "following" for row in rows)
            wanted = self._one.job["shards"] * (self._one.job["replication"] - 1)
            return status if len(ready) == len(self._one.waits_s) and followers == wanted else None

        return runs.wait_for(trains, "all workers and followers", START_S)


def made(row: dict[str, Any]) -> int:
    """Mini-batches of a worker's row of a status; of a batch method its bundles, each of which is a push."""
    return int(max(row["totals"]["steps"], row["totals"]["pushes"]))


@contextlib.contextmanager
def deployed_job(one: Configuration, seconds: float, hostnet: Path | None) -> Iterator[DeployedJob]:
    """A configuration's processes, which have all ended after the block; its network lasts for `seconds`.

    They are killed: a worker would first finish its lease.
    """
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(runs.temporary_run(JOB))
        count = Places.of(one).count
        used = Hosts(count)
        if one.link is not None:
            if hostnet is None:
                raise SystemExit("DBELIEF_HOSTNET names no program that makes hosts")
            used = Hosts(count, f"dbs{os.getpid() % 10_000}")
            delay = ("--delay-ms", f"{one.link.delay_ms:g}")
            stack.enter_context(hosts.network(hostnet, used.prefix, count, one.link.rate_mbit, seconds, *delay))
        try:
            deployed = DeployedJob(run, one, used)
            stack.callback(deployed.onlooker.close)
            yield deployed
        finally:
            for process in run.started:
                process.kill()
