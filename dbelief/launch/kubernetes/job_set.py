"""A job as one JobSet: its success is the coordinator's, and every other member is started again alone.

Source: JobSet v1alpha2, https://jobset.sigs.k8s.io/docs/concepts, which names a leader, workers and parameter servers.
"""

from __future__ import annotations

from typing import Any

from dbelief.errors import UNFINISHED

from . import pods
from .description import Description, Object
from .workloads import coordinators, shared

API = "jobset.x-k8s.io/v1alpha2"
QUEUE = "kueue.x-k8s.io/queue-name"
_ALWAYS = 2_147_483_647
"""Most failures of a Job's pods: members are started again for as long as their coordinator waits for them."""


def job_set(job: Description) -> list[Object]:
    """The JobSet, last, and what its pods need."""
    return [*shared(job), queued(job, job.object(API, "JobSet", job.instance, spec=spec(job)))]


def spec(job: Description, workers: str = "worker", alone: bool = False) -> Object:
    """Spec of the JobSet.

    Parameters
    ----------
    workers
        Name of the workers' replicated job, and of their container.
    alone
        Whether there is one coordinator, which is replaced when it fails, and none that stands by.
    """
    coordinator = {**coordinators(job), "completionMode": "NonIndexed"}
    if alone or job.job.kubernetes.queue is not None:  # Kueue evicts a job whose pods are not all ready in time
        coordinator["parallelism"] = 1
    del coordinator["ttlSecondsAfterFinished"]  # the JobSet's own
    members = [workers, "ps"]
    replicated = [_replicated("coordinator", coordinator)]
    replicated += [_replicated("ps", _members(pods.shard(job, _INDEX), job.shards))]
    worker = pods.worker(job)
    worker["spec"]["containers"][0]["name"] = workers
    replicated += [_replicated(workers, _members(worker, job.job.replicas))]
    if job.job.kubernetes.registry is None:
        registry = pods.registry(job, UNFINISHED)  # a Job takes code 0 for its end
        registry["spec"]["volumes"] += [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}]
        replicated.insert(0, _replicated("registry", _members(registry, 1)))
        members.append("registry")
    rules = [
        {"name": "theJobsEnd", "action": "FailJobSet", "targetReplicatedJobs": ["coordinator"]},
        {"name": "membersAlone", "action": "RestartJobAndIgnoreMaxRestarts", "targetReplicatedJobs": members},
    ]
    return {
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["coordinator"]},
        "failurePolicy": {"maxRestarts": 0, "rules": rules},
        "ttlSecondsAfterFinished": job.job.kubernetes.keep_s,
        "replicatedJobs": replicated,
    }


_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def queued(job: Description, whole: Object) -> Object:
    """The object with the label by which Kueue admits all its pods at once, where the job has a queue."""
    if job.job.kubernetes.queue is not None:
        whole["metadata"]["labels"][QUEUE] = job.job.kubernetes.queue
    return whole


def _members(template: Object, count: int) -> Object:
    template["spec"]["restartPolicy"] = "OnFailure"
    numbers = {"parallelism": count, "completions": count, "completionMode": "Indexed"}
    return {**numbers, "backoffLimit": _ALWAYS, "template": template}


def _replicated(name: str, of: dict[str, Any]) -> Object:
    return {"name": name, "replicas": 1, "template": {"spec": of}}
