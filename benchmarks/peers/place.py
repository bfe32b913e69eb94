"""Where a system runs: its folder, its hosts, its ports, and the processes that a supervisor starts again.

All processes are in one network namespace of their own, whose loopback counts their bytes; or each on its host, on
links of a rate and a delay (`harness/hosts.py`). Without root they are on this machine's loopback, and no bytes are
counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.faults.supervisor import Supervisor, Unit
from benchmarks.harness import checkout, hosts, runs


class Place:
    """The place of one run.

    Parameters
    ----------
    python
        Interpreter of the system's environment.
    given
        Options of the trainers (`trainers/work.py`), without the folder.
    namespace
        Of the loopback; "": this machine's.
    prefix
        Of hosts on links; "": all are on the loopback.
    """

    def __init__(self, run: runs.Run, python: Path, given: dict[str, Any], namespace: str, prefix: str) -> None:
        self.run, self.python = run, python
        self.folder, self.linked = run.folder, bool(prefix)
        self.given = {**given, "folder": str(run.folder)}
        self.workers: int = given["workers"]
        self.supervisor = Supervisor()
        self._namespace, self._prefix = namespace, prefix
        self._ports: dict[str, int] = {}
        for name in ("reports", "models"):
            (run.folder / name).mkdir()

    def port(self, name: str) -> int:
        """A free port, the same for a name."""
        return self._ports.setdefault(name, runs.free_port())

    def address(self, host: int = 0) -> str:
        """IP address of a host; host 0 is that of servers, N that of worker N - 1."""
        return hosts.address(host + 1) if self._prefix else "127.0.0.1"

    def inside(self, host: int) -> list[str]:
        """The prefix of a command that runs on a host."""
        if self._prefix:
            return hosts.inside(self._prefix, host + 1)
        return ["ip", "netns", "exec", self._namespace] if self._namespace else []

    def program(self, name: str) -> str:
        """Path of a program of the environment."""
        return str(self.python.with_name(name))

    def trainer(self, name: str) -> list[str]:
        """The command of a trainer; its module is imported, so that what it sends is not of `__main__`."""
        return [str(self.python), "-c", f"from benchmarks.peers.trainers.{name} import main; main()"]

    def start(
        self,
        name: str,
        command: Sequence[str],
        host: int = 0,
        ends: bool = False,
        more: Mapping[str, Any] = MappingProxyType({}),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start a process that the supervisor starts again.

        Parameters
        ----------
        ends
            Whether it is over with exit code 0; else it is started again after that too.
        more, variables
            Options of its trainer; of its environment.
        """
        shared = {
            "PEERS": json.dumps({**self.given, **more}),
            "PYTHONPATH": str(checkout.ROOT),
            "PYTHONUNBUFFERED": "1",
            "HOST": self.address(host),
        }
        shared |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        shared |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "eth0" if self.linked else "lo")
        words = [f"{key}={value}" for key, value in {**shared, **variables}.items()]
        role = name.rpartition("-")[0] or name
        self.supervisor.add(Unit(self.run, name, role, [*self.inside(host), "env", *words, *command], ends=ends))

    def carried(self) -> int | None:
        """Bytes that the namespace's loopback has carried so far; None where it is not counted."""
        if self._prefix or not self._namespace:
            return None
        command = [*self.inside(0), "cat", "/sys/class/net/lo/statistics/tx_bytes"]
        return int(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)

    def kill(self, name: str, away_s: float) -> None:
        """SIGKILL to a process: one of the supervisor's with its descendants, or the one that reports by this name.

        Raises
        ------
        LookupError
            There is none.
        """
        if name in self.supervisor.units:
            unit = self.supervisor.units[name]
            below = descendants(unit.process.pid)
            self.supervisor.kill([name], {unit.role: away_s})
            for pid in below:
                with contextlib.suppress(ProcessLookupError):  # it ended with its parent
                    os.kill(pid, signal.SIGKILL)
            return
        running = self.run.processes()
        pids = [int(path.stem.rpartition(".")[2]) for path in (self.folder / "reports").glob(f"{name}.*.jsonl")]
        if not (alive := [pid for pid in pids if pid in running]):
            raise LookupError(f"no process {name} runs")
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes below this one, at any depth."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


@contextmanager
def own_loopback() -> Iterator[str]:
    """A network namespace with a loopback only, to the end of the block; its name is "" where root is missing."""
    if os.geteuid():
        yield ""
        return
    name = f"dbp{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=10)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True, timeout=10)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, timeout=10)
