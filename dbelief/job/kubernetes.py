"""How Kubernetes runs the job: the pods' image, their sizes, claims, and what scales and queues them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .document.section import Count, Members, Natural, Positive, Section, Whole, Words, refusal

ObjectName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"),
    Words("a name of Kubernetes: 1 to 63 lowercase letters, digits, dots and hyphens"),
]

Label = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
    Words("a name of a namespace: 1 to 63 lowercase letters, digits and hyphens"),
]


class Pod(Section):
    """What a pod of a role is given."""

    cpu: Positive = Field(default=1.0, description="Cores that are reserved for it")
    memory_mib: Count = Field(default=512, description="MiB that are reserved for it; at twice that it is ended")


class ScaledWorkers(Section):
    """Bounds of a number of workers that follows the leases that are left."""

    by: Literal["hpa", "keda"] = Field(
        default="hpa", description="Whose object is made: Kubernetes' HorizontalPodAutoscaler, or KEDA's ScaledObject"
    )
    least: Members = Field(default=1, description="Smallest number of workers")
    most: Members = Field(default=16, description="Largest number of workers")
    leases: Count = Field(default=4, description="Leases for which one worker is kept")
    prometheus: str = Field(default="http://prometheus:9090", description="Address of Prometheus, which keda asks")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.least > self.most:
            raise refusal("most", f"must be at least `least`, {self.least}, not {self.most}")
        return self


class Kubernetes(Section):
    """Kubernetes' part of the job: what `dbelief kubernetes render` and `--on kubernetes` make its objects of."""

    kind: Literal["plain", "jobset", "trainjob"] = Field(
        default="plain",
        description="What its objects are: Job, StatefulSet and Deployment; a JobSet; or a TrainJob with its runtime",
    )
    image: str = Field(default="dbelief:latest", description="Image of all pods, of deploy/Dockerfile or one above it")
    namespace: Label | None = Field(default=None, description="Namespace of the objects; null for kubectl's own")
    runs: ObjectName = Field(
        default="runs", description="PersistentVolumeClaim of run folders, where output is a folder: ReadWriteMany"
    )
    data: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim of data, ${DBELIEF_DATA} in the pods; null for none"
    )
    store: ObjectName | None = Field(
        default=None, description="Secret with the variables of a store of objects, such as AWS_ACCESS_KEY_ID"
    )
    service_account: ObjectName | None = Field(
        default=None, description="ServiceAccount of the pods, where a cloud gives access to a store by it"
    )
    registry: str | None = Field(
        default=None, description="URL of a registry, rediss://HOST:PORT; null for one of the job's own"
    )
    coordinator: Pod = Field(default_factory=lambda: Pod(cpu=0.5), description="Pods of coordinators")
    ps: Pod = Field(default_factory=Pod, description="Pods of shards")
    worker: Pod = Field(default_factory=lambda: Pod(memory_mib=1024), description="Pods of workers")
    gpus: Natural = Field(default=0, description="GPUs of a worker, nvidia.com/gpu")
    spot: bool = Field(
        default=False, description="Workers on nodes that may be reclaimed, where there are any; no other pod is there"
    )
    grace_s: Annotated[Whole, Field(ge=1, le=3600)] = Field(
        default=60, description="Seconds that a pod has to end: a worker trains its lease to the end, a shard has a set"
    )
    queue: ObjectName | None = Field(default=None, description="LocalQueue of Kueue that admits the job; null for none")
    scale: ScaledWorkers | None = Field(
        default=None, description="Bounds of workers that are scaled by the leases left; null for the job's replicas"
    )
    keep_s: Annotated[Whole, Field(ge=60)] = Field(
        default=600,
        description="Seconds after which Kubernetes removes an ended Job or JobSet, and with `--on kubernetes` all "
        "objects of the job",
    )

    @model_validator(mode="after")
    def _the_kind_can_have_it(self) -> Self:
        if self.queue is not None and self.kind == "plain":
            raise refusal("queue", "needs kind jobset or trainjob: plain objects are admitted one by one, not as a job")
        if self.scale is not None and self.kind != "plain":
            raise refusal("scale", f"needs kind plain: the numbers of a {self.kind} are fixed")
        return self
