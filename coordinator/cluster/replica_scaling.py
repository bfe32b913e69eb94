"""Requested number of replicas, by a person or by measurement, and manual steps to scale shards. No clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dbelief.errors import Rejected
from dbelief.job import Job

from ..core.effects import LogEvent
from ..core.states import State
from ..scheduling.auto_scaling import AutoScaling, Factor, Totals

LOOK_S = 2.0
"""Seconds between two looks at the totals."""
LAUNCHER_TIMEOUT_S = 10.0
"""Seconds after which a launcher counts as absent; a launcher requests the status several times a second."""


class ReplicaScaling:
    """Requested replica count, and whether a launcher is present that can apply it.

    Attributes
    ----------
    wanted
        Requested number of replicas; None: no request so far.
    auto
        What requests numbers by measurement; None: the job does not ask for that, or training has not begun.
    """

    def __init__(self, job: Job) -> None:
        self.wanted: int | None = None
        self.auto: AutoScaling | None = None
        self._job = job
        self._launcher_seen_s: float | None = None
        self._look_s = -math.inf

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

    def follow(
        self, living: int, take: Callable[[], Totals], predict: Callable[[Any, Any, int], Factor | None], now_s: float
    ) -> LogEvent | None:
        """Change the requested number by what was measured, where the job asks for that; the event of a change.

        To be called periodically while the job trains and all its replicas may. Without a launcher nothing is changed.

        Parameters
        ----------
        living
            Number of replicas now.
        take, predict
            Take totals, and predict from what was kept of two of them, for a present number: see `AutoScaling`.
        """
        scale = self._job.scale
        if scale is None or now_s - self._look_s < LOOK_S or not self.launcher_present(now_s):
            return None
        self._look_s = now_s
        if self.auto is None:
            most = scale.most(self._job.replicas)
            # After a takeover the launcher has the last request, of which no trace is left here but the replicas.
            begun = self.wanted or living or self._job.replicas
            self.auto = AutoScaling(scale, min(most, max(scale.min, begun)), most)
            self.auto.begin(now_s)
        auto = self.auto
        if self.wanted is not None:
            auto.set_by_hand(self.wanted, now_s)
        auto.look(take(), now_s)
        decision = auto.decide(lambda first, last: predict(first, last, auto.count), now_s)
        if decision is None:
            return None
        self.wanted = decision.after
        return LogEvent(
            "workers_scaled",
            {
                "from": decision.before,
                "to": decision.after,
                "why": decision.why,
                "samples_per_s": round(decision.samples_per_s, 3),
                "training": round(decision.training, 2),
                "measured_s": round(decision.measured_s, 1),
                "factor": round(decision.factor, 3),
            },
        )
