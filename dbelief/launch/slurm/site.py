"""The nodes of an allocation as a cluster's site: the coordinator on the first node, members as steps on all nodes."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dbelief.launch.child_process import ASKED_S, RESTARTS, ChildProcess, Direct, Way
from dbelief.launch.elsewhere import job_credentials
from dbelief.launch.places import Places
from dbelief.rpc.pb import coordination_pb2 as wire

from .allocation import Allocation
from .silence import Silence
from .steps import Nodes, SlurmStep

log = logging.getLogger(__name__)


class SlurmSite:
    """A `Site` of one batch job.

    Parameters
    ----------
    shared
        Folder on storage that all nodes share, for the credentials' own; None: the run folder.
    beat_s
        The job's heartbeat deadline.
    """

    stopped = 0  # Slurm itself reports why it sent a signal

    def __init__(
        self,
        allocation: Allocation,
        shared: Path | None,
        beat_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.listen = f"{allocation.first}:0"
        self._allocation = allocation
        self._nodes = Nodes(allocation)
        self._places = Places(allocation.tasks)
        self._places.put("coordinator", "coordinator", [allocation.first])
        self._shared, self._credentials = shared, Path()
        self._silence = Silence(beat_s)
        self._clock = clock
        self._guard: ChildProcess | None = None

    @contextmanager
    def entered(self, logs: Path) -> Iterator[None]:
        """See `Site`."""
        with job_credentials(self._shared or logs.parent, self._allocation.first) as self._credentials:
            try:
                if len(self._allocation.tasks) > 1:
                    self._guard = self._guarding(logs)
                    self._guard.start()
                yield
            finally:
                if self._guard is not None and self._guard.process is not None:
                    self._guard.process.send_signal(signal.SIGTERM)  # srun ends its step
                    self._guard.finish(ASKED_S)

    def registry_folder(self, run: Path, scratch: Path) -> Path:
        """See `Site`: a job whose first node fails restarts from a snapshot set, so the node's own disk suffices."""
        return scratch / "registry"

    def arguments(self, role: str) -> list[str]:
        """See `Site`."""
        return ["--credentials", str(self._credentials / role)]

    def way(self, role: str, name: str) -> Way:
        """See `Site`."""
        return Direct() if role == "coordinator" else SlurmStep(role, name, self._nodes, self._places)

    def look(self, status: wire.StatusReply, shards: Iterable[ChildProcess]) -> None:
        """See `Site`."""
        now_s = self._clock()
        if self._guard is not None and not self._guard.restart_if_due(now_s):
            log.warning(f"{self._guard.fate()}; if node {self._allocation.first} fails, the job is not requeued")
            self._guard = None
        silent_s: dict[str, float] = {}
        for member in status.members:
            silent_s[member.name] = min(member.silent_s, silent_s.get(member.name, member.silent_s))
        for child in shards:
            silence_s = silent_s.get(child.name)
            if silence_s is None or child.process is None or child.code is not None:
                continue
            if self._silence.is_lost(child.name, child.started, silence_s, now_s) and isinstance(child.way, SlurmStep):
                child.way.abandon(child.process, silence_s)

    def _guarding(self, logs: Path) -> ChildProcess:
        """The guard process of the first node, on another node."""
        first = self._allocation.first
        others = Places({node: count for node, count in self._allocation.tasks.items() if node != first})
        arguments = ["slurm-guard", self._allocation.job, first]
        return ChildProcess(
            "guard", arguments, logs / "guard.log", RESTARTS, SlurmStep("guard", "guard", self._nodes, others, False)
        )
