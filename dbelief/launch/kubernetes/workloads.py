"""Plain objects of a job: coordinators are a Job, shards a StatefulSet, workers a Deployment."""

from __future__ import annotations

from typing import Any

from . import pods
from .description import Description, Object

TRIES = 100
"""Coordinators that may fail one after the other, for a reason that is not the job's: as often as nodes are lost."""
ENDED = (1, 2, 3)
"""Exit codes of a coordinator whose job has failed, is invalid, or has no last evaluation: no other one is started."""


def plain(job: Description) -> list[Object]:
    """All objects, the Job of the coordinators last."""
    objects = [*shared(job), *_shards(job), *_workers(job)]
    if job.job.kubernetes.registry is None:
        objects += _registry(job)
    main = job.object("batch/v1", "Job", job.name("coordinator"), "coordinator", spec=coordinators(job))
    return [*objects, main]


def shared(job: Description) -> list[Object]:
    """What the job has whatever its pods are made by: its files, and names that resolve."""
    files = job.object("v1", "ConfigMap", job.name("job"), data=dict(job.files))
    # Only the coordinator that leads is ready, so the name resolves to it.
    leader = _service(job, "coordinator", grpc=pods.PORTS["coordinator"], metrics=pods.METRICS, page=pods.PAGE)
    objects = [files, leader]
    if job.job.kubernetes.registry is None:
        objects += [_service(job, "registry", redis=pods.REGISTRY_PORT)]
    return objects


def coordinators(job: Description) -> Object:
    """Spec of the Job of two coordinators: the second one stands by, and success is that of the one that leads.

    A coordinator that its node's drain or a failure ends is replaced; one that reports the job's end is not.
    """
    ended = {"containerName": "coordinator", "operator": "In", "values": list(ENDED)}
    rules = [
        {"action": "FailJob", "onExitCodes": ended},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    return {
        "parallelism": 2,
        "backoffLimit": TRIES,
        "podFailurePolicy": {"rules": rules},
        "ttlSecondsAfterFinished": job.job.kubernetes.keep_s,
        "template": pods.coordinator(job),
    }


def _shards(job: Description) -> list[Object]:
    spec = {
        "serviceName": job.name("ps"),
        "replicas": job.shards,
        "podManagementPolicy": "Parallel",  # shards start independently of each other
        "selector": {"matchLabels": job.selector("ps")},
        "template": pods.shard(job, "metadata.labels['apps.kubernetes.io/pod-index']"),  # Kubernetes 1.28 and newer
    }
    return [
        _service(job, "ps", True, grpc=pods.PORTS["ps"], metrics=pods.METRICS),
        job.object("apps/v1", "StatefulSet", job.name("ps"), "ps", spec=spec),
        # One at a time: the shard's segments are restored from the newest snapshot set before the next eviction.
        _budget(job, "ps", 1),
    ]


def _workers(job: Description) -> list[Object]:
    spec: dict[str, Any] = {
        "selector": {"matchLabels": job.selector("worker")},
        "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        "template": pods.worker(job),
    }
    if job.job.kubernetes.scale is None:  # else the number is the autoscaler's, and applying must not set it back
        spec = {"replicas": job.job.replicas, **spec}
    return [
        _service(job, "worker", True, metrics=pods.METRICS),  # Prometheus discovers all workers by it
        job.object("apps/v1", "Deployment", job.name("worker"), "worker", spec=spec),
        _budget(job, "worker", "50%"),
    ]


def _registry(job: Description) -> list[Object]:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = {
        "serviceName": job.name("registry"),
        "replicas": 1,
        "selector": {"matchLabels": job.selector("registry")},
        "template": pods.registry(job),
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
    }
    return [
        job.object("apps/v1", "StatefulSet", job.name("registry"), "registry", spec=spec),
        # Draining its node is allowed: the job waits for the registry for a minute, and the volume moves with the pod.
        _budget(job, "registry", 1),
    ]


def _service(job: Description, role: str, headless: bool = False, **ports: int) -> Object:
    listed = [{"name": name, "port": number} for name, number in ports.items()]
    address = {"clusterIP": "None"} if headless else {}
    spec = {**address, "selector": job.selector(role), "ports": listed}
    return job.object("v1", "Service", job.name(role), role, spec=spec)


def _budget(job: Description, role: str, most: int | str) -> Object:
    spec = {"maxUnavailable": most, "selector": {"matchLabels": job.selector(role)}}
    return job.object("policy/v1", "PodDisruptionBudget", job.name(role), role, spec=spec)
