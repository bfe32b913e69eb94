"""The least that a person or a service needs in the job's namespace for `--on kubernetes`."""

from __future__ import annotations

from typing import NamedTuple

from .description import Object

NAME = "dbelief-launcher"


class AccessRule(NamedTuple):
    """Verbs on a resource of an API group."""

    group: str
    resource: str
    verbs: tuple[str, ...]


RULES = (
    AccessRule("", "configmaps", ("create",)),
    AccessRule("", "secrets", ("create",)),
    AccessRule("", "services", ("create",)),
    AccessRule("", "pods", ("list",)),
    AccessRule("", "pods/log", ("get",)),
    AccessRule("", "pods/portforward", ("get", "create")),  # create: of Kubernetes 1.35 and newer
    AccessRule("apps", "deployments", ("create", "patch")),
    AccessRule("apps", "statefulsets", ("create", "get", "patch")),
    AccessRule("policy", "poddisruptionbudgets", ("create",)),
    AccessRule("autoscaling", "horizontalpodautoscalers", ("create",)),
    AccessRule("keda.sh", "scaledobjects", ("create",)),
    AccessRule("batch", "jobs", ("create", "get", "patch", "delete")),
    AccessRule("jobset.x-k8s.io", "jobsets", ("create", "get", "patch", "delete")),
)
"""Numbers of pods, and the start of a suspended job, are patched; owned objects are removed by Kubernetes itself."""


def access(namespace: str | None) -> Object:
    """A Role in a namespace; None: in kubectl's own. Who is bound to it is the cluster's matter."""
    rules = [{"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)} for rule in RULES]
    where = {"namespace": namespace} if namespace is not None else {}
    metadata = {"name": NAME, **where}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}
