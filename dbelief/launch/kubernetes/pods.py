"""Pods of each role: containers, their security, volumes and variables, the same in every kind of object."""

from __future__ import annotations

from typing import Any

from dbelief.job.kubernetes import Pod

from .description import DATA, Description, Object

CONFINED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
"""Security of a container, as Kubernetes' restricted profile has it."""
PORTS = {"coordinator": 7070, "ps": 7071, "worker": 7072}
METRICS, PAGE, REGISTRY_PORT = 9100, 8080, 6379
REGISTRY_IMAGE = "docker.io/valkey/valkey:8-alpine"
REGISTRY_PATIENCE_S = 600
"""Seconds for which a coordinator waits for a registry whose image is still pulled."""
_SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels of nodes that may be reclaimed, by cloud; the last two clouds taint them by the same words."""
_HEALTH = ["dbelief", "health"]


def coordinator(job: Description) -> Object:
    """Pod template of a coordinator: the one that leads is ready, the other one stands by."""
    args = ["coordinator", "/srv/job/job.yaml", "--once", f"--metrics=0.0.0.0:{METRICS}", f"--page=0.0.0.0:{PAGE}"]
    # A drained node does not stop the job; `dbelief stop` does.
    args += ["--on-signal=leave", f"--patience={REGISTRY_PATIENCE_S}", *["--resume"] * job.resume]
    registry = job.job.kubernetes.registry or f"rediss://{job.name('registry')}:{REGISTRY_PORT}"
    leads = ["dbelief", "health", "--service=dbelief.v1.Coordinator"]
    container = {
        **_container(job, "coordinator", args, job.job.kubernetes.coordinator),
        "ports": [_port("grpc", PORTS["coordinator"]), _port("metrics", METRICS), _port("page", PAGE)],
        "startupProbe": _probe(_HEALTH, 5, 36),
        "livenessProbe": _probe(_HEALTH, 30, 20),  # one that has just taken the lead reads its data first
        "readinessProbe": _probe(leads, 5),
    }
    container["env"] += [_variable("DBELIEF_LISTEN", f"0.0.0.0:{PORTS['coordinator']}")]
    container["env"] += [_variable("DBELIEF_REGISTRY", registry)]
    return _template(job, "coordinator", container, "Never", writes=True)


def shard(job: Description, number: str) -> Object:
    """Pod template of a shard; `number`: path of the field that has the pod's number in its set."""
    args = ["ps", f"--coordinator={job.name('coordinator')}:{PORTS['coordinator']}", "--name=ps-$(POD_NUMBER)"]
    # With followers a process has no fixed number: each may serve any shard.
    args += ["--number=$(POD_NUMBER)"] * (job.job.replication == 1)
    args += [f"--metrics=0.0.0.0:{METRICS}", "--at-end=wait"]
    container = {
        **_container(job, "ps", args, job.job.kubernetes.ps),
        "ports": [_port("grpc", PORTS["ps"]), _port("metrics", METRICS)],
        "startupProbe": _probe(_HEALTH, 5, 24),
        "livenessProbe": _probe(_HEALTH, 30, 3),
        "readinessProbe": _probe(_HEALTH, 10),
    }
    container["env"] += [_field("POD_NUMBER", number), _variable("DBELIEF_LISTEN", f"0.0.0.0:{PORTS['ps']}")]
    return _template(job, "ps", container, "Always", writes=True)


def worker(job: Description) -> Object:
    """Pod template of a worker, which serves others of its group only: there is no probe.

    The coordinator removes a worker that hangs, and the worker exits.
    """
    args = ["worker", f"--coordinator={job.name('coordinator')}:{PORTS['coordinator']}", "--name=$(POD_NAME)"]
    if job.script:
        args += ["--", *(word.replace("$", "$$") for word in job.script)]  # else $(NAME) would be a variable's value
    else:
        args += [f"--listen=0.0.0.0:{PORTS['worker']}", f"--metrics=0.0.0.0:{METRICS}", "--at-end=wait"]
    container = {
        **_container(job, "worker", args, job.job.kubernetes.worker),
        "ports": [_port("group", PORTS["worker"]), _port("metrics", METRICS)],
    }
    container["env"] += [_field("POD_NAME", "metadata.name")]
    container["volumeMounts"] += [{"name": "shm", "mountPath": "/dev/shm"}]
    pod = _template(job, "worker", container, "Always", writes=False)
    gpus = job.job.kubernetes.gpus
    pod["spec"]["volumes"] += [_memory("shm", "2Gi" if gpus else "256Mi")]
    if gpus:
        container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
        tolerated = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        pod["spec"]["tolerations"] = [*pod["spec"].get("tolerations", []), tolerated]
    return pod


def registry(job: Description, code: int | None = None) -> Object:
    """Pod template of the registry, which keeps the job's state when a coordinator fails.

    Parameters
    ----------
    code
        Exit code after a signal; None: the server's own, 0.
    """
    server = ["valkey-server", "/credentials/registry.conf", "--dir", "/data"]
    within = f"{' '.join(server)} & own=$!; trap 'kill $own' TERM; wait $own; wait $own; exit {code}"
    probe: dict[str, Any] = {"tcpSocket": {"port": "redis"}}
    container: dict[str, Any] = {
        "name": "registry",
        "image": REGISTRY_IMAGE,
        **({"args": server} if code is None else {"command": ["sh", "-c", within]}),
        "ports": [_port("redis", REGISTRY_PORT)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": CONFINED,
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 3},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "credentials", "mountPath": "/credentials", "readOnly": True},
        ],
    }
    spec = {
        **_confined(999),
        "containers": [container],
        "volumes": [_secret(job.secret("registry"))],
        **_apart(job, "registry"),
    }
    return {"metadata": {"labels": job.labels("registry")}, "spec": spec}


def _container(job: Description, role: str, args: list[str], size: Pod) -> Object:
    fields = job.job.kubernetes
    memory = {"memory": f"{size.memory_mib}Mi"}
    container: dict[str, Any] = {
        "name": role,
        "image": fields.image,
        "imagePullPolicy": "IfNotPresent",  # one that was loaded into the node is used, whatever its tag
        "args": args,
        "env": [_variable("DBELIEF_CREDENTIALS", "/credentials"), _variable(DATA, "/srv/data")],
        "resources": {
            "requests": {"cpu": _cores(size.cpu), **memory},
            "limits": {"memory": f"{2 * size.memory_mib}Mi"},
        },
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "job", "mountPath": "/srv/job", "readOnly": True},
            {"name": "credentials", "mountPath": "/credentials", "readOnly": True},
        ],
    }
    container["env"] += [
        _variable(name, value.replace("$", "$$")) for name, value in sorted((job.environment or {}).items())
    ]
    if fields.store is not None:
        container["envFrom"] = [{"secretRef": {"name": fields.store}}]
    if fields.data is not None:
        container["volumeMounts"] += [{"name": "data", "mountPath": "/srv/data", "readOnly": True}]
    return container


def _template(job: Description, role: str, container: Object, restart: str, writes: bool) -> Object:
    """A pod template; `writes`: whether the role writes into the run folder."""
    fields = job.job.kubernetes
    # Where runs are in a store, a process has its run folder below /tmp until it is uploaded; CuPy has its cache there.
    tmp = {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}}
    large = (writes and job.stored) or (role == "worker" and fields.gpus > 0)
    volumes: list[Object] = [
        tmp if large else _memory("tmp", "256Mi"),
        {"name": "job", "configMap": {"name": job.name("job")}},
    ]
    volumes += [_secret(job.secret(role))]
    if fields.data is not None:
        volumes += [{"name": "data", "persistentVolumeClaim": {"claimName": fields.data}}]
    if writes and not job.stored:
        container["volumeMounts"] += [{"name": "runs", "mountPath": "/srv/runs"}]
        volumes += [{"name": "runs", "persistentVolumeClaim": {"claimName": fields.runs}}]
    account = {"serviceAccountName": fields.service_account} if fields.service_account is not None else {}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": job.selector(role)},
    }
    spec = {
        **_confined(1000),
        **account,
        "shareProcessNamespace": True,  # a process that is PID 1 ignores SIGTERM until it handles it, as scripts do not
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": fields.grace_s,
        "topologySpreadConstraints": [spread],
        **_apart(job, role),
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"labels": job.labels(role)}, "spec": spec}


def _confined(user: int) -> Object:
    context = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": 1000, "fsGroup": 1000}
    return {
        "automountServiceAccountToken": False,
        "securityContext": {**context, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def _apart(job: Description, role: str) -> Object:
    """With `spot`: workers on nodes that may be reclaimed, if there are any; every other pod elsewhere."""
    if not job.job.kubernetes.spot:
        return {}
    if role != "worker":
        away = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in _SPOT.items()]
        terms = {"nodeSelectorTerms": [{"matchExpressions": away}]}
        return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    preferred = [
        {"weight": 100, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for key, value in _SPOT.items()
    ]
    tolerated = [{"key": key, "operator": "Equal", "value": value} for key, value in _SPOT.items()]
    return {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
        "tolerations": tolerated,
    }


def _cores(count: float) -> str:
    """Cores as Kubernetes writes them itself."""
    return f"{count:g}" if count == int(count) else f"{round(1000 * count)}m"


def _variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> Object:
    """A variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _port(name: str, number: int) -> Object:
    return {"name": name, "containerPort": number}


def _probe(command: list[str], period_s: int, failures: int = 3) -> Object:
    """A probe by a command: Kubernetes' own gRPC probe has no TLS."""
    return {"exec": {"command": command}, "periodSeconds": period_s, "timeoutSeconds": 10, "failureThreshold": failures}


def _memory(name: str, most: str) -> Object:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": most}}


def _secret(name: str) -> Object:
    return {"name": "credentials", "secret": {"secretName": name, "defaultMode": 0o440}}
