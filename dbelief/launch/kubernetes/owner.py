"""The object that stands for a job and owns all others: created suspended, started, and removed with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from dbelief.errors import RuntimeFailure, UserError

from .api import KubernetesApi, ObjectKind, Refused
from .description import Object
from .follow import has_ended
from .job_set import QUEUE

log = logging.getLogger(__name__)

CONFLICT = 409
GONE_S = 120.0
"""Seconds in which Kubernetes removes an ended job, beside those that its pods have to end."""
LOOK_S = 1.0


class Owner:
    """The Job or the JobSet of a job, whatever becomes of this process the owner of all its objects.

    Parameters
    ----------
    main
        The object.
    grace_s
        Seconds that its pods have to end.
    """

    def __init__(self, api: KubernetesApi, main: Object, grace_s: float) -> None:
        self._api, self._main, self._gone_s = api, main, GONE_S + grace_s
        self._kind, self._name = ObjectKind.of(main), main["metadata"]["name"]
        self._queued = QUEUE in main["metadata"]["labels"]  # then Kueue starts it, when there is room
        self._uid = ""
        self.started = False

    def create(self) -> None:
        """Create it, suspended; one of this name that has ended, or was never started, is removed before.

        Raises
        ------
        UserError
            A job of this name runs.
        """
        suspended = {**self._main, "spec": {**self._main["spec"], "suspend": True}}
        try:
            self._uid = self._api.create(suspended)
            return
        except Refused as error:
            if error.status != CONFLICT:
                raise
        found = self._api.get(self._kind, self._name)
        if found is not None:
            waits = found["spec"].get("suspend", False) and QUEUE not in found["metadata"].get("labels", {})
            if has_ended(found) is None and "deletionTimestamp" not in found["metadata"] and not waits:
                raise UserError(
                    f"{self._kind.kind} {self._name} runs in namespace {self._api.namespace}: kubectl delete "
                    f"{self._kind.kind} {self._name} ends it, --set name=ANOTHER leaves it"
                )
            self._api.delete(self._kind, self._name)
            self._wait_until_gone()
        self._uid = self._api.create(suspended)

    def start(self, objects: Sequence[Object]) -> None:
        """Create all objects that it owns, then start it.

        Raises
        ------
        UserError
            An object of a name is there, which another job or a person has made.
        """
        owner = {"apiVersion": self._kind.api, "kind": self._kind.kind, "name": self._name, "uid": self._uid}
        until_s = time.monotonic() + GONE_S
        for thing in objects:
            self._create({**thing, "metadata": {**thing["metadata"], "ownerReferences": [owner]}}, until_s)
        if not self._queued:
            self._api.patch(self._kind, self._name, {"spec": {"suspend": False}})
        self.started = True
        queued = ", queued" if self._queued else ""
        log.info(f"{self._kind.kind} {self._name} is in namespace {self._api.namespace}{queued}")

    def _create(self, thing: Object, until_s: float) -> None:
        """Create an object, once that of a removed job is gone: Kubernetes removes what is owned after its owner."""
        while True:
            try:
                self._api.create(thing)
                return
            except Refused as error:
                if error.status != CONFLICT:
                    raise
            if time.monotonic() > until_s:
                name = f"{thing['kind']} {thing['metadata']['name']}"
                raise UserError(f"{name} is in namespace {self._api.namespace} already, and is not this job's")
            time.sleep(LOOK_S)

    def remove(self) -> None:
        """Remove it, and with it all that it owns; a failure is logged: its time to live removes it too."""
        try:
            self._api.delete(self._kind, self._name)
            self._wait_until_gone()
        except RuntimeFailure as error:
            log.warning(f"{error}; kubectl delete {self._kind.kind} {self._name} removes it")

    def _wait_until_gone(self) -> None:
        until_s = time.monotonic() + self._gone_s
        while self._api.get(self._kind, self._name) is not None:
            if time.monotonic() > until_s:
                raise RuntimeFailure(
                    f"{self._kind.kind} {self._name} is still there {self._gone_s:g} s after its removal"
                )
            time.sleep(LOOK_S)
