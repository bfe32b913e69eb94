"""How many replicas somebody wants, for a launcher that can start and end them. No clock: time is an argument."""

from __future__ import annotations

from dbelief.errors import Refused
from dbelief.job import Job

from .states import State

HEARD_S = 10.0
"""A launcher asks several times a second how the job goes; one that was not heard for so long is none."""


class Scaling:
    """What is wanted, and whether anybody is there who brings it about.

    Attributes
    ----------
    wanted
        Replicas that there are to be; None: nobody has asked for any number yet.
    """

    def __init__(self, job: Job) -> None:
        self.wanted: int | None = None
        self._job = job
        self._heard_s: float | None = None

    def heard(self, now_s: float) -> None:
        """A launcher is there."""
        self._heard_s = now_s

    def want(self, replicas: int, state: State, now_s: float) -> None:
        """Somebody wants so many.

        Raises
        ------
        Refused
            Nobody could bring it about, or the job is not training.
        """
        name = self._job.name
        if replicas < 1:
            raise Refused(f"job {name} cannot go on without a replica: `dbelief stop` ends it")
        if self._heard_s is None or now_s - self._heard_s > HEARD_S:
            raise Refused(
                f"job {name} was not started by `dbelief train`: with compose, `docker compose up --detach "
                f"--no-recreate --scale worker={replicas}`; with Kubernetes, `kubectl scale deployment worker "
                f"--replicas={replicas}`; by hand, `dbelief worker` starts one, and SIGTERM lets one finish and leave"
            )
        if self._job.pin_cores:
            raise Refused(f"job {name} has pin_cores: each of its {self._job.replicas} replicas keeps to its own cores")
        if state is not State.READY:
            raise Refused(f"job {name} is {state.value}: while it trains (ready), there can be more or fewer replicas")
        self.wanted = replicas
