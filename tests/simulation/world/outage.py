"""An outage: all machines lose power at once, and a user starts all programs again, as `docs/how-to/resume.md` says.

Where the registry kept its content, the programs are started as before. Where it lost it, one coordinator is started
with `--resume`, and the other one, which stands by, once the first has written the job's state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from dbelief.registry import MemoryRegistry
from tests.simulation.models.jobs import COORDINATORS

from .disk import SimulatedDisk
from .scheduler import Process

FIRST = COORDINATORS[0]
"""The coordinator that resumes the job."""


class Power:
    """Power loss, and what is to be started after it.

    Parameters
    ----------
    job
        The job's name in the registry.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._registry_lost = False

    def has_set(self, registry: MemoryRegistry) -> bool:
        """Whether a coordinator has recorded a complete snapshot set: then a resume must succeed."""
        stored = registry.read(self._job).get("state")
        return bool(stored) and json.loads(stored or b"{}")["set"] is not None

    def fails(self, processes: Iterable[Process], disk: SimulatedDisk, registry_lost: bool) -> list[str]:
        """Lose what no machine has flushed; returns what was lost."""
        self._registry_lost = self._registry_lost or registry_lost
        return [lost for process in processes for lost in disk.machine_failed(process)]

    def resumes(self, registry: MemoryRegistry) -> bool:
        """Whether the first coordinator starts with `--resume`: nothing else knows of the job."""
        return self._registry_lost and not registry.read(self._job).get("state")

    def may_start(self, name: str, registry: MemoryRegistry) -> bool:
        """Whether a program may start now: no other coordinator before the job is resumed, or it would begin anew."""
        return name == FIRST or name not in COORDINATORS or not self.resumes(registry)
