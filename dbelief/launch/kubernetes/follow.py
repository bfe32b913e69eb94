"""A job whose objects are applied: its pods' states, its status, its scale, until its end."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dbelief.errors import DbeliefError, RuntimeFailure
from dbelief.monitor.format import plural
from dbelief.monitor.status import to_dict
from dbelief.process.terminal.console import Interrupt, cause_of
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire

from .api import KubernetesApi, ObjectKind, Refused
from .description import Description, Object
from .workloads import ENDED

log = logging.getLogger(__name__)

LOOK_S = 1.0
TRIES = 60
"""Looks in a row that may fail, as while the API server is replaced."""
STOP_S = 60.0
"""Seconds after a signal in which a coordinator that has led may be replaced by one that stops the job."""
MEMBERS_S = 10.0
"""Seconds from one look at pods of members that do not run to the next."""
STOPPED = 130
"""Exit code of a job that a signal to this process has stopped, as on one machine."""
_LINES = 200
_FINAL = {"Complete": True, "Completed": True, "Failed": False}
"""Conditions that end a Job, a TrainJob, a JobSet; whether the job has succeeded."""
DEPLOYMENT, STATEFUL_SET = ObjectKind("apps/v1", "Deployment"), ObjectKind("apps/v1", "StatefulSet")


class JobFollower:
    """Follows a job to its end.

    Parameters
    ----------
    main
        The object that stands for the job.
    show
        Called with the job's status as a mapping, for the live view.
    """

    def __init__(
        self,
        api: KubernetesApi,
        job: Description,
        main: Object,
        show: Callable[[Mapping[str, Any]], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._job, self._show, self._clock = api, job, show, clock
        self._kind, self._name = ObjectKind.of(main), main["metadata"]["name"]
        self._states: dict[str, str] = {}  # of pods, as last logged
        self._members_s = 0.0
        self._asked = self._led = False
        self._signalled_s = 0.0
        self._status: Mapping[str, Any] = {}  # the last one
        # The numbers of other kinds are fixed, and an autoscaler is the only one to set its own.
        self._scales = self._kind.kind == "Job" and job.job.kubernetes.scale is None
        self._replicas: int | None = None
        self.leader = ""
        """Pod of the coordinator that leads; "": none does now."""
        self.over = False
        """Whether the job has ended."""

    def follow(self, client: CoordinatorClient, interrupted: Interrupt) -> int:
        """Show the job until its end; its exit code.

        At SIGINT or SIGTERM the job is stopped by its coordinator, with a last snapshot set, and the exit code is 130.
        A job that no coordinator leads yet is cancelled. At SIGHUP this process ends alone, and the job goes on.

        Parameters
        ----------
        client
            Of the coordinator, whichever pod leads.

        Raises
        ------
        RuntimeFailure
            The API server does not answer, the job's object is gone, or Kubernetes ended the job.
        """
        failures = 0
        while not (interrupted.is_set() and interrupted.number == signal.SIGHUP):
            try:
                code = self._look(client, interrupted)
                failures = 0
                if code is not None:
                    return code
            except Refused as error:
                failures += 1
                if failures > TRIES or error.status in (401, 403):
                    raise RuntimeFailure(f"{error}; {self._name} goes on, and is not followed any further") from error
                log.debug(f"{error}; trying again")
            (time.sleep if interrupted.is_set() else interrupted.wait)(LOOK_S)
        log.info(f"{self._kind.kind} {self._name} goes on, and is not followed any further")
        return STOPPED

    def _look(self, client: CoordinatorClient, interrupted: Interrupt) -> int | None:
        """Look once; the exit code of a job that has ended."""
        main = self._api.get(self._kind, self._name)
        if main is None:
            raise RuntimeFailure(f"{self._kind.kind} {self._name} is gone: it was deleted, and the job with it")
        pods = self._api.pods(self._job.selector("coordinator"))
        self._note(pods)
        self.leader = next((pod["metadata"]["name"] for pod in pods if _is_ready(pod)), "")
        end = has_ended(main)
        if end is not None:
            self.over = True
            return self._ended(pods, *end)
        if self.leader:
            self._led = True
            self._ask(client, interrupted)
        return self._cancelled(interrupted)

    def _cancelled(self, interrupted: Interrupt) -> int | None:
        """The exit code of a job that a signal ends, and that no coordinator can stop: in a queue, without nodes."""
        if not interrupted.is_set() or interrupted.number == signal.SIGHUP or self._asked:
            return None
        self._signalled_s = self._signalled_s or self._clock()
        if self._led and self._clock() - self._signalled_s < STOP_S:
            return None
        log.info(f"{cause_of(interrupted)}: no coordinator could be asked to stop the job, which is removed")
        self.over = True
        return STOPPED

    def _ask(self, client: CoordinatorClient, interrupted: Interrupt) -> None:
        """Ask the coordinator for its status, and for what was requested of it."""
        try:
            if interrupted.is_set() and interrupted.number != signal.SIGHUP and not self._asked:
                client.call("Stop", wire.StopRequest(reason=f"stopped by {cause_of(interrupted)}"))
                self._asked = True
                log.info(f"{cause_of(interrupted)}: stopping; leased work is finished and a snapshot set taken")
            status = client.call("Status", wire.StatusRequest(scales=self._scales), patience_s=0.0)
        except DbeliefError as error:  # it is ending, or its successor is not ready yet
            log.debug(f"{error}")
            return
        self._status = to_dict(status)
        self._show(self._status)
        if status.state == wire.STATE_READY:
            self._scale(status)
        elif self._clock() - self._members_s > MEMBERS_S:
            self._members_s = self._clock()
            for role in ("ps", "worker"):
                self._note(self._api.pods(self._job.selector(role)), running=False)

    def _scale(self, status: wire.StatusReply) -> None:
        """Make the numbers of pods those that the job's coordinator was asked for."""
        if not self._scales:
            return
        if status.HasField("wanted_replicas") and status.wanted_replicas != self._replicas:
            self._set(DEPLOYMENT, "worker", status.wanted_replicas)
            self._replicas = status.wanted_replicas
        wanted = status.wanted_shards * self._job.job.replication
        present = sum(member.role == wire.ROLE_SHARD and member.state != "died" for member in status.members)
        # Fewer only once the job needs none of those that end: they are the ones of the highest numbers.
        if wanted > present or (wanted < present and all(number < wanted for number in status.needed_shards)):
            found = self._api.get(STATEFUL_SET, self._job.name("ps"))
            if found is not None and found["spec"]["replicas"] != wanted:
                self._set(STATEFUL_SET, "ps", wanted)

    def _set(self, kind: ObjectKind, role: str, count: int) -> None:
        log.info(f"{kind.kind} {self._job.name(role)}: {plural(count, 'pod')}")
        self._api.patch(kind, self._job.name(role), {"spec": {"replicas": count}})

    def _note(self, pods: list[Object], running: bool = True) -> None:
        """Log states of pods that have changed; `running`: also that one runs."""
        for pod in pods:
            name, state = pod["metadata"]["name"], _state(pod)
            if self._states.get(name) != state and (running or state != "running"):
                log.info(f"pod {name}: {state}")
            self._states[name] = state

    def _ended(self, pods: list[Object], succeeded: bool, why: str) -> int:
        """The exit code of a job that has ended, after its coordinator's last words."""
        codes = {pod["metadata"]["name"]: code for pod in pods if (code := _exit_code(pod)) is not None}
        last = [name for name, code in codes.items() if code in ((0,) if succeeded else ENDED)]
        if not last and not succeeded:
            raise RuntimeFailure(f"{self._kind.kind} {self._name}: {why or 'failed'}")
        # The one that stood by ends with the same code; the one that led has the outcome in its log.
        said = []
        for name in last:
            with suppress(Refused):  # its node is gone
                said.append(_outcome(self._api.log(name, _LINES), self._job.job.name))
        for _, line in sorted(said)[-1:]:
            (log.info if succeeded else log.error)(line + self._scores())
        return STOPPED if self._asked and succeeded else codes[last[0]] if last else 0

    def _scores(self) -> str:
        """The model's scores as the last status had them."""
        scores = {key: self._status.get(key) for key in ("test_accuracy", "test_loss")}
        if isinstance(scores["test_accuracy"], float):
            return f", test accuracy {100 * scores['test_accuracy']:.2f} %"
        return f", test loss {scores['test_loss']:.4g}" if isinstance(scores["test_loss"], float) else ""


def has_ended(main: Object) -> tuple[bool, str] | None:
    """Whether a job has succeeded, and why it has ended; None while it goes on."""
    for condition in main.get("status", {}).get("conditions") or ():
        if condition["type"] in _FINAL and condition["status"] == "True":
            return _FINAL[condition["type"]], condition.get("message", "")
    return None


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _state(pod: Object) -> str:
    """State of a pod in words: why it waits, where it does."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return f"{waiting.get('reason', 'waiting')}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', 'pending')}: {condition.get('message', '')}".rstrip(": ")
    return str(status.get("phase", "Pending")).lower()


def _exit_code(pod: Object) -> int | None:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        ended = container.get("state", {}).get("terminated")
        if ended:
            return int(ended["exitCode"])
    return None


def _outcome(lines: list[str], job: str) -> tuple[bool, str]:
    """Whether a coordinator's log, of text or JSON, has the job's outcome, and that line; else its last line."""
    said = [_message(line) for line in lines if line.strip()] or [f"job {job} ended without a word"]
    begun = f"job {job} done: ", f"job {job} failed: "
    found = next((line[line.index(b) :] for line in reversed(said) for b in begun if b in line), None)
    return found is not None, found or said[-1]


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line.removeprefix("Error: ")
