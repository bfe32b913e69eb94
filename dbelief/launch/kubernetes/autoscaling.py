"""The object that scales a Deployment of workers by the leases that are left until the job's end."""

from __future__ import annotations

from .description import Description, Object

METRIC = "dbelief_coordinator_lease_backlog"
SETTLE_S = 300
"""Seconds for which the number stays before it falls: a worker takes a minute to be of use."""


def autoscaler(job: Description) -> list[Object]:
    """A HorizontalPodAutoscaler or a ScaledObject, where the job has bounds."""
    scale = job.job.kubernetes.scale
    if scale is None:
        return []
    slowly = {"scaleDown": {"stabilizationWindowSeconds": SETTLE_S}}
    name = job.name("worker")
    if scale.by == "hpa":
        target = {"type": "AverageValue", "averageValue": str(scale.leases)}
        metric = {"name": METRIC, "selector": {"matchLabels": {"job": job.name("coordinator")}}}
        spec = {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": scale.least,
            "maxReplicas": scale.most,
            "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
            "behavior": slowly,
        }
        return [job.object("autoscaling/v2", "HorizontalPodAutoscaler", name, "worker", spec=spec)]
    trigger = {
        "serverAddress": scale.prometheus,
        "query": f'max({METRIC}{{job="{job.name("coordinator")}"}})',
        "threshold": str(scale.leases),
    }
    spec = {
        "scaleTargetRef": {"name": name},
        "minReplicaCount": scale.least,
        "maxReplicaCount": scale.most,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": slowly}},
        "triggers": [{"type": "prometheus", "metadata": trigger}],
    }
    return [job.object("keda.sh/v1alpha1", "ScaledObject", name, "worker", spec=spec)]
