"""`--on kubernetes`: the objects of a job are applied, followed to its end, and removed."""

from __future__ import annotations

import base64
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dbelief.errors import RuntimeFailure, Unavailable, UserError
from dbelief.job import Job
from dbelief.launch.elsewhere import job_credentials
from dbelief.process.terminal.console import interrupt_event
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rundir.folder import ADDRESS, CREDENTIALS, found_at
from dbelief.url import Url

from .api import KubernetesApi, ObjectKind, Refused
from .description import ROLES, Description, Object, describe
from .follow import Follower, has_ended
from .forward import Forwarder
from .job_set import QUEUE
from .pods import PORTS
from .render import render

log = logging.getLogger(__name__)

GONE_S = 120.0
"""Seconds in which Kubernetes removes an ended job."""
LOOK_S = 1.0
CONFLICT = 409
DEFAULT_OUTPUT = Path("runs")


def run(
    job: Job,
    script: Sequence[str],
    resume: bool,
    show: Callable[[Mapping[str, Any]], None],
) -> int:
    """Run a job on the cluster that kubectl's configuration names; its exit code.

    Raises
    ------
    UserError
        The job is none for Kubernetes, there is no cluster, or a job of this name runs.
    RuntimeFailure
        The API server refuses a call, or Kubernetes ended the job.
    """
    if job.kubernetes.kind == "trainjob":
        raise UserError(
            "kubernetes.kind: a runtime of Kubeflow Trainer is of the whole cluster: dbelief kubernetes render JOB | "
            "kubectl apply -f -, or kind jobset"
        )
    described = describe(job, None, script, resume)
    *objects, main = render(described)
    api = KubernetesApi(job.kubernetes.namespace)
    with ExitStack() as stack:
        interrupted = stack.enter_context(interrupt_event())
        folder = stack.enter_context(_folder(job))
        credentials = stack.enter_context(
            job_credentials(folder, "localhost", (described.name("registry"), "localhost"))
        )
        follower = Follower(api, described, main, show)
        stack.callback(_remove, api, main, follower)
        _start(api, [*_secrets(described, credentials), *objects], main)
        forwarder = stack.enter_context(Forwarder(lambda: _connect(api, follower)))
        client = CoordinatorClient(forwarder.address, patience_s=2.0)
        stack.callback(client.close)
        stack.enter_context(found_at(folder, forwarder.address, job))
        log.info(f"while this process runs: dbelief top {folder}")
        code = follower.follow(client, interrupted)
    if follower.over:
        where = job.output if isinstance(job.output, Url) else f"{job.output} of claim {job.kubernetes.runs}"
        log.info(f"the run's files are in {where}, below {job.name}")
    return code


def _start(api: KubernetesApi, objects: Sequence[Object], main: Object) -> None:
    """Create the object that stands for the job, suspended; then what it owns; then start it.

    All others are owned by it, so that Kubernetes removes them with it, whatever becomes of this process.
    """
    queued = main["metadata"]["labels"].get(QUEUE) is not None
    uid = _created(api, {**main, "spec": {**main["spec"], "suspend": True}})
    name = main["metadata"]["name"]
    owner = {"apiVersion": main["apiVersion"], "kind": main["kind"], "name": name, "uid": uid}
    try:
        for thing in objects:
            api.apply({**thing, "metadata": {**thing["metadata"], "ownerReferences": [owner]}})
        if not queued:  # else Kueue starts it, when there is room
            api.patch(ObjectKind.of(main), name, {"spec": {"suspend": False}})
    except RuntimeFailure:
        api.delete(ObjectKind.of(main), name)
        raise
    log.info(f"{main['kind']} {name} is in namespace {api.namespace}" + (", queued" if queued else ""))


def _created(api: KubernetesApi, main: Object) -> str:
    """The uid of a new object; one of this name whose job has ended is removed before.

    Raises
    ------
    UserError
        A job of this name runs.
    """
    kind, name = ObjectKind.of(main), main["metadata"]["name"]
    try:
        return api.create(main)
    except Refused as error:
        if error.status != CONFLICT:
            raise
    found = api.get(kind, name)
    if found is not None:
        if has_ended(found) is None and "deletionTimestamp" not in found["metadata"]:
            raise UserError(
                f"{kind.kind} {name} runs in namespace {api.namespace}: dbelief stop it, or --set name=ANOTHER"
            )
        api.delete(kind, name)
        _wait_until_gone(api, kind, name)
    return api.create(main)


def _remove(api: KubernetesApi, main: Object, follower: Follower) -> None:
    """Remove the objects of a job that has ended."""
    kind, name = ObjectKind.of(main), main["metadata"]["name"]
    if follower.over:
        api.delete(kind, name)
        _wait_until_gone(api, kind, name)


def _wait_until_gone(api: KubernetesApi, kind: ObjectKind, name: str) -> None:
    until_s = time.monotonic() + GONE_S
    while api.get(kind, name) is not None:
        if time.monotonic() > until_s:
            raise RuntimeFailure(f"{kind.kind} {name} is being removed, and is still there after {GONE_S:g} s")
        time.sleep(LOOK_S)


def _secrets(job: Description, credentials: Path) -> list[Object]:
    """A Secret for each role, of its folder."""
    return [
        job.object("v1", "Secret", job.secret(role), role, data=_encoded(credentials / role))
        for role in (*ROLES, *["registry"] * (job.job.kubernetes.registry is None))
    ]


def _encoded(folder: Path) -> dict[str, str]:
    return {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted(folder.iterdir())}


def _connect(api: KubernetesApi, follower: Follower) -> socket.socket:
    if not follower.leader:
        raise Unavailable("no coordinator leads the job now")
    return api.connect(follower.leader, PORTS["coordinator"])


@contextmanager
def _folder(job: Job) -> Iterator[Path]:
    """The folder by which other commands find the job, where on one machine its run folder is; removed at the end.

    Raises
    ------
    UserError
        A run of this machine is there.
    """
    folder = (DEFAULT_OUTPUT if isinstance(job.output, Url) else job.output) / job.name
    ours = {"job.yaml", ADDRESS, CREDENTIALS}  # of a launcher that was killed
    if folder.exists() and not {path.name for path in folder.iterdir()} <= ours:
        raise UserError(f"{folder}: has a run of this machine, and other commands find the job there: move it")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        (folder / "job.yaml").unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
