"""`--on kubernetes`: the objects of a job are applied, followed to its end, and removed."""

from __future__ import annotations

import base64
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dbelief.errors import Unavailable, UserError
from dbelief.job import Job
from dbelief.launch.elsewhere import job_credentials
from dbelief.process.terminal.console import interrupt_event
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rundir.folder import ADDRESS, CREDENTIALS, found_at
from dbelief.url import Url

from .api import KubernetesApi
from .description import ROLES, Description, Object, describe
from .follow import JobFollower
from .forward import Forwarder
from .owner import Owner
from .pods import PORTS
from .render import render

log = logging.getLogger(__name__)

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
            "kubernetes.kind: the ClusterTrainingRuntime of a TrainJob is an object of the whole cluster: dbelief "
            "kubernetes render JOB | kubectl apply -f -, or kind jobset"
        )
    described = describe(job, None, script, resume)
    *objects, main = render(described)
    api = KubernetesApi(job.kubernetes.namespace)
    with ExitStack() as stack:
        interrupted = stack.enter_context(interrupt_event())
        owner = Owner(api, main, job.kubernetes.grace_s)
        owner.create()  # before the files of another command on the same job are touched
        follower = JobFollower(api, described, main, show)
        stack.callback(lambda: None if owner.started and not follower.over else owner.remove())
        folder = stack.enter_context(_folder(job))
        hosts = described.name("registry"), "localhost"
        credentials = stack.enter_context(job_credentials(folder, "localhost", hosts))
        owner.start([*_secrets(described, credentials), *objects])
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


def _secrets(job: Description, credentials: Path) -> list[Object]:
    """A Secret for each role, of its folder: also for who operates the job later, and for Prometheus."""
    return [
        job.object("v1", "Secret", job.secret(role), role, data=_encoded(credentials / role))
        for role in (*ROLES, "operator", "prometheus", *["registry"] * (job.job.kubernetes.registry is None))
    ]


def _encoded(folder: Path) -> dict[str, str]:
    return {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted(folder.iterdir())}


def _connect(api: KubernetesApi, follower: JobFollower) -> socket.socket:
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
