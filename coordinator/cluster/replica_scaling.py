"""Requested number of replicas, and the manual steps left after a request to scale shards. No clock."""

from __future__ import annotations

from dbelief.errors import Rejected
from dbelief.job import Job

from ..core.states import State

LAUNCHER_TIMEOUT_S = 10.0
"""Seconds after which a launcher counts as absent; a launcher requests the status several times a second."""


class ReplicaScaling:
    """Requested replica count, and whether a launcher is present that can apply it.

    Attributes
    ----------
    wanted
        Requested number of replicas; None: no request so far.
    """

    def __init__(self, job: Job) -> None:
        self.wanted: int | None = None
        self._job = job
        self._launcher_seen_s: float | None = None

    def launcher_seen(self, now_s: float) -> None:
        """Record that a launcher is present."""
        self._launcher_seen_s = now_s

    def launcher_present(self, now_s: float) -> bool:
        """Whether a launcher is present."""
        return self._launcher_seen_s is not None and now_s - self._launcher_seen_s <= LAUNCHER_TIMEOUT_S

    def manual_steps(self, shards: int, before: int, now_s: float) -> str:
        """Instructions for the operator to reach this number of shards; "" where a launcher does it."""
        if self.launcher_present(now_s) or shards == before:
            return ""
        commands = (
            f"with compose, `docker compose up --detach --no-recreate --scale ps={shards}`; with Kubernetes, "
            f"`kubectl scale statefulset ps --replicas={shards}`"
        )
        if shards > before:
            return f"now start {shards - before} more: {commands}; by hand, `dbelief ps` starts one"
        return f"{before - shards} will end by themselves; when they have: {commands}"

    def request(self, replicas: int, state: State, now_s: float) -> None:
        """Set the requested number of replicas.

        Raises
        ------
        Rejected
            The number is below 1, no launcher is present, the replicas are pinned to cores, or the job is not training.
        """
        name = self._job.name
        if replicas < 1:
            raise Rejected(f"job {name} needs at least one replica: `dbelief stop` ends it")
        if not self.launcher_present(now_s):
            raise Rejected(
                f"job {name} was not started by `dbelief train`: with compose, `docker compose up --detach "
                f"--no-recreate --scale worker={replicas}`; with Kubernetes, `kubectl scale deployment worker "
                f"--replicas={replicas}`; by hand, `dbelief worker` starts one, and SIGTERM lets one finish and leave"
            )
        if self._job.pin_cores:
            raise Rejected(
                f"job {name} has pin_cores: each of its {self._job.replicas} replicas keeps to its own cores"
            )
        if state is not State.READY:
            raise Rejected(f"job {name} is {state.value}: the number of replicas can change only in training (ready)")
        self.wanted = replicas
