"""A Slurm cluster of a few nodes on this host: real daemons, all on loopback, for tests. Root; no cgroups, no systemd.

All files are below one folder, the munge key and socket among them. Outside it, node names stand in /etc/hosts while
the cluster runs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.processes.conftest import wait_for

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
HOSTS = Path("/etc/hosts")
MARK = "# dbelief test of slurm"
PREFIX = "dbn"

_CONFIGURATION = """ClusterName=dbelief
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmctldTimeout=30
SlurmdTimeout={timeout_s}
KillWait=30
SlurmdParameters=config_overrides
JobRequeue=1
NodeName={prefix}[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory=16000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why no cluster can be started here, in a line; "" where it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"Slurm is not installed: no {', '.join(absent)} (Debian: slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "a Slurm cluster of several nodes on one host needs root"


class SlurmCluster:
    """Nodes dbn1 to dbnN on this host, from `with` to the end of its block.

    Parameters
    ----------
    folder
        Made for the cluster: configuration, state, logs.
    nodes, cpus
        How many nodes, and CPUs of each.
    timeout_s
        After which silence Slurm takes a node for dead.
    """

    def __init__(self, folder: Path, nodes: int, cpus: int, timeout_s: int = 10) -> None:
        self.folder = folder
        self.nodes = [f"{PREFIX}{number}" for number in range(1, nodes + 1)]
        self._cpus = cpus
        self._timeout_s = timeout_s
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Self:
        """Start it, and wait until all nodes are idle."""
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel jobs, end all daemons, and take the names out of /etc/hosts."""
        self._end()

    def slurm(self, *command: str, cwd: Path | None = None) -> str:
        """What a command of Slurm prints, called in a folder."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False, cwd=cwd
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
        return done.stdout

    def kill(self, node: str) -> None:
        """SIGKILL a node's daemon and all that runs on the node: it is silent from now on.

        As on a machine that loses power, no process acts on the end of another: all are suspended before one ends. Else
        srun's own child, which outlives it for a moment, would cancel its step on another node.
        """
        self._daemons[node].kill()
        self._daemons[node].wait()
        suspended: list[int] = []
        for _ in range(3):  # what is started between a look and its signal is found by the next look
            processes = self.on_node(node)
            suspended = [*_keepers(processes), *processes]
            for process in suspended:
                _signal(process, signal.SIGSTOP)
        for process in suspended:
            _signal(process, signal.SIGKILL)

    def on_node(self, node: str) -> list[int]:
        """Processes of jobs on a node."""
        here = f"SLURMD_NODENAME={node}".encode()
        ours = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        return [process for process, variables in _environments() if here in variables and ours in variables]

    def _start(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        self.folder.chmod(0o755)
        first, controller = _free_ports(len(self.nodes))
        text = _CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=self.folder,
            nodes=len(self.nodes),
            cpus=self._cpus,
            timeout_s=self._timeout_s,
            prefix=PREFIX,
            port=controller,
            first=first,
            last=first + len(self.nodes) - 1,
        )
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        with HOSTS.open("a") as file:
            file.writelines(f"127.0.0.1 {node} {MARK}\n" for node in self.nodes)
        files = [f"--{name}-file={self.folder}/munge.{end}" for name, end in (("key", "key"), ("pid", "pid"))]
        files += [f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed"]
        # --force: the folder is a test's, and may be below one that others can write to.
        self._start_daemon(
            "munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files
        )
        wait_for((self.folder / "munge.socket").exists, "munged")
        self._start_daemon("slurmctld", "slurmctld", "-D")
        for node in self.nodes:
            (self.folder / f"spool.{node}").mkdir()
            self._start_daemon(node, "slurmd", "-D", "-N", node)
        wait_for(lambda: self._idle() == len(self.nodes), f"{len(self.nodes)} idle nodes; see {self.folder}")

    def _start_daemon(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _idle(self) -> int:
        done = subprocess.run(
            ("sinfo", "--noheader", "-N", "-o", "%t"),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split().count("idle")

    def _end(self) -> None:
        if "slurmctld" in self._daemons:
            subprocess.run(("scancel", "--user=root"), env=self.environment, timeout=60, check=False)
        for node in self.nodes:  # what a job left on a node ends with it
            for process in self.on_node(node):
                _signal(process, signal.SIGKILL)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if HOSTS.exists():
            lines = HOSTS.read_text().splitlines(keepends=True)
            HOSTS.write_text("".join(line for line in lines if not line.rstrip().endswith(MARK)))


def _environments() -> list[tuple[int, list[bytes]]]:
    """Every process with its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((int(folder.name), (folder / "environ").read_bytes().split(b"\0")))
        except OSError:
            continue  # it has ended
    return found


def _keepers(processes: list[int]) -> list[int]:
    """The slurmstepd of each of these processes' steps."""
    parents = set()
    for process in processes:
        try:
            parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                parents.add(parent)
        except OSError:
            continue  # it has ended
    return sorted(parents)


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _free_ports(nodes: int) -> tuple[int, int]:
    """The first of so many free ports in a row, and one more for the controller."""
    for first in range(17_000 + os.getpid() % 1_000 * 10, 32_000, 10):
        if all(_is_free(first + number) for number in range(nodes + 1)):
            return first, first + nodes
    raise AssertionError("no free ports in a row below 32000")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
