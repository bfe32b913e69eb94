"""A member as its own Slurm step on one node: started by srun, so that a node failure ends only that node's members."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dbelief.errors import RuntimeFailure, UserError
from dbelief.launch.child_process import PROGRAM, Process, describe_exit, listening, spawn
from dbelief.launch.places import WORKER, Places

from .allocation import Allocation

log = logging.getLogger(__name__)

FRESH_S = 2.0


class Nodes:
    """Remaining nodes of an allocation, queried at most every `FRESH_S` unless a fresh list is requested.

    If Slurm does not answer, the previous list is kept.
    """

    def __init__(self, allocation: Allocation, clock: Callable[[], float] = time.monotonic) -> None:
        self.allocation = allocation
        self._clock = clock
        self._left = list(allocation.tasks)
        self._asked_s = clock()

    def left(self, fresh: bool = False) -> list[str]:
        """The remaining nodes, including the batch script's."""
        if fresh or self._clock() - self._asked_s > FRESH_S:
            self._asked_s = self._clock()
            try:
                left = self.allocation.left()
            except RuntimeFailure as error:
                log.warning(f"{error}; nodes {', '.join(self._left)} are taken to be there")
            else:
                for node in [node for node in self._left if left and node not in left]:
                    log.warning(f"node {node} is lost")
                self._left = [node for node in self._left if node in left] or self._left  # empty: the job is ending
        return self._left


class SlurmStep:
    """Method of starting one member on a node: a `Way` of `dbelief.launch.child_process`.

    Parameters
    ----------
    listens
        Whether the member has a `--listen` option; it listens on its node's name, by which other members connect.
    """

    noise: tuple[str, ...] = ("srun: ", "slurmstepd")

    def __init__(self, role: str, name: str, nodes: Nodes, places: Places, listens: bool = True) -> None:
        self._role, self._name = role, name
        self._nodes, self._places = nodes, places
        self._listens = listens
        self._node = ""
        self._ended: tuple[int, str] | None = None

    def start(self, arguments: list[str], log: Path) -> Process:
        """See `Way`."""
        return spawn(self.command(arguments), log)

    def command(self, arguments: list[str]) -> list[str]:
        """The srun command line; reserves a place on a node, once for each start."""
        self._ended = None
        self._node = self._places.put(self._role, self._name, self._nodes.left())
        words = listening(arguments, self._node) if self._listens else arguments
        srun = [shutil.which("srun") or "srun", *self._sharing(), "--kill-on-bad-exit=0", f"--job-name={self._name}"]
        where = ["--nodes=1", "--ntasks=1", f"--nodelist={self._node}"]
        return [*srun, *where, *PROGRAM, *words]

    def ask_to_end(self, process: Process) -> None:
        """See `Way`: through Slurm, since srun itself would kill the member at SIGTERM."""
        try:
            for step in self._steps():
                self._nodes.allocation.run(["scancel", "--signal=TERM", step])
        except RuntimeFailure as error:
            # Slurm 22.05 also reports "Invalid job id" for a step that it has signalled.
            if process.poll() is None and "Invalid job id" not in str(error):
                log.warning(f"{self._name} could not be asked to end: {error}")

    def fate(self, code: int) -> tuple[int, str]:
        """See `Way`: srun exits with 0 when its node fails."""
        if self._ended is None:
            self._ended = code, f"on node {self._node} {describe_exit(code)}"
            if self._node not in self._nodes.left(fresh=True):
                self._ended = 1, f"was lost with node {self._node}"
            if self._ended[0] not in (0, UserError.exit_code):
                self._places.failed(self._node)
        return self._ended

    def possible(self) -> bool:
        """See `Way`."""
        return self._places.again(self._role, self._name, self._nodes.left())

    def abandon(self, process: Process, silent_s: float) -> None:
        """End a member that has sent no heartbeat for `silent_s`, to start it on another node."""
        self._ended = 1, f"was silent on node {self._node} for {silent_s:.0f} s, and is abandoned there"
        self._places.failed(self._node)
        process.kill()

    def _sharing(self) -> list[str]:
        """Resource options of the step: it never waits for resources, except GPUs of its own, which exist or not.

        All steps share the job's CPUs and memory on the node. Steps with `--overlap` would be assigned the same GPU.
        """
        gpus = self._nodes.allocation.gpus
        if gpus and self._role == WORKER:
            return ["--exact", f"--gpus-per-task={gpus}", "--immediate=60", "--mem=0", "--cpu-bind=none"]
        return ["--overlap", *["--gres=none"] * bool(gpus), "--mem=0", "--cpu-bind=none"]

    def _steps(self) -> list[str]:
        """Ids of the running steps of this name."""
        job = self._nodes.allocation.job
        rows = self._nodes.allocation.run(["squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i %j"])
        return [row.split()[0] for row in rows.splitlines() if row.split()[1:] == [self._name]]
